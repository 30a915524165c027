// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// words3 are a command's: "Arguments may be positional (up to 3), or given as --key=value /
// key=value, or as valueless flags" (MPS v3 Interface).
type words3 struct {
	positional []string
	options    map[string]string
}

func parse3(words []string) (w words3, err error) {
	w.options = map[string]string{}
	for _, word := range words {
		key, value, has := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		switch {
		case has:
			w.options[key] = value
		case strings.HasPrefix(word, "--"):
			w.options[key] = ""
		default:
			w.positional = append(w.positional, word)
		}
	}
	if len(w.positional) > 3 {
		return w, errors.New("too many arguments")
	}
	return w, nil
}

func (w words3) only(options ...string) error {
	for key := range w.options {
		if !slices.Contains(options, key) {
			return fmt.Errorf("unknown option --%s", key)
		}
	}
	return nil
}

func (w words3) word(n int) string {
	if n < len(w.positional) {
		return w.positional[n]
	}
	return ""
}

// answer3 carries out a command: nvidia-cuda-mps-control <module> <verb> ….
func (d *daemon3) answer3(words []string, peer *unix.Ucred) ([]string, error) {
	if len(words) < 2 {
		return nil, fmt.Errorf("unknown command %q", strings.Join(words, " "))
	}
	w, err := parse3(words[2:])
	if err != nil {
		return nil, err
	}
	command := words[0] + " " + words[1]
	if slices.Contains([]string{"server create", "server delete", "server set", "namespace create", "namespace delete", "namespace set", "sm-partition create", "sm-partition delete", "client terminate"}, command) && peer.Uid != uint32(os.Getuid()) {
		// As measured on 615 by kai-gpu-fractioning.
		//lint:ignore ST1005 The original says it so.
		return nil, fmt.Errorf("Insufficient privileges for UID %d. '%s' requires server owner.", peer.Uid, strings.ToUpper(command))
	}
	switch command {
	case "server create":
		return d.serverCreate(w)
	case "server delete":
		return d.serverDelete(w)
	case "server list":
		return d.serverList(w)
	case "server set":
		if err := w.only("uid", "pinned-memory-limit", "active-thread-percentage", "locality-domains", "client-priority"); err != nil {
			return nil, err
		}
		return d.namespaceSet("default", w.word(0), w)
	case "namespace create":
		s, err := d.server3(w.options["server"])
		if err == nil {
			err = w.only("server")
		}
		if err == nil {
			_, err = d.createNamespace(s, w.word(0))
		}
		return nil, err
	case "namespace delete":
		return d.namespaceDelete(w)
	case "namespace list":
		return d.namespaceList(w)
	case "namespace set":
		allowed := []string{"server", "pinned-memory-limit", "active-thread-percentage", "client-priority"}
		if d.release >= 620 {
			allowed = append(allowed, "cgroup", "cgroup-depth", "device", "sm-partition")
		}
		if err := w.only(allowed...); err != nil {
			return nil, err
		}
		return d.namespaceSet(w.word(0), w.options["server"], w)
	case "namespace get":
		return d.namespaceGet(w)
	case "client list":
		return d.clientList(w)
	case "client terminate":
		return d.clientTerminate(w)
	case "device list":
		all, chunk := d.chunkSize()
		return []string{strings.Join([]string{"0", cmpOr(w.options["server"], "-"), "00000000:01:00.0", d.device, "NVIDIA H100 80GB HBM3", strconv.Itoa(all), strconv.Itoa(all / chunk), "-"}, ",")}, nil
	case "sm-partition create":
		return d.partitionCreate(w)
	case "sm-partition delete":
		return d.partitionDelete(w)
	case "sm-partition list":
		return d.partitionList(w)
	}
	return nil, fmt.Errorf("unknown command %q", command)
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (d *daemon3) server3(name string) (*server3, error) {
	if s := d.servers[name]; s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("server %q not found", name)
}

func (d *daemon3) namespace3(name, server string) (*server3, *namespace3, error) {
	s, err := d.server3(server)
	if err != nil {
		return nil, nil, err
	}
	if n := s.namespaces[name]; n != nil {
		return s, n, nil
	}
	return nil, nil, fmt.Errorf("namespace %q not found on server %q", name, server)
}

// within counts the clients of a namespace.
func (s *server3) within(namespace string) (count int) {
	for _, c := range s.clients {
		if c.namespace == namespace {
			count++
		}
	}
	return count
}

func (d *daemon3) serverCreate(w words3) ([]string, error) {
	if err := w.only("uid", "allowed-devices", "locality-domains"); err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(cmpOr(w.options["uid"], "0"))
	if err != nil {
		return nil, fmt.Errorf("uid %q is not a number", w.options["uid"])
	}
	_, err = d.createServer(cmpOr(w.word(0), fmt.Sprintf("uid_%d", uid)), uid, w.options["allowed-devices"])
	return nil, err
}

// serverDelete refuses "if active clients remain. With --force, terminates active clients
// first".
func (d *daemon3) serverDelete(w words3) ([]string, error) {
	s, err := d.server3(w.word(0))
	if err != nil {
		return nil, err
	}
	if _, force := w.options["force"]; len(s.clients) > 0 && !force {
		return nil, fmt.Errorf("server %q has active clients", s.name)
	}
	return nil, s.cmd.Process.Kill()
}

func (d *daemon3) serverList(w words3) (lines []string, err error) {
	if w.word(0) != "" {
		if _, err := d.server3(w.word(0)); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.servers)) {
		s := d.servers[name]
		if w.word(0) == "" || w.word(0) == name {
			lines = append(lines, strings.Join([]string{s.name, strconv.Itoa(s.uid), strconv.Itoa(s.cmd.Process.Pid), d.state3(), s.namespaces["default"].dir[:len(d.pipeDir)+1+len(name)], cmpOr(s.allowed, "-"), "-"}, ","))
		}
	}
	return lines, nil
}

// state3 is a server's: "Ready" is the only one that the pages have.
func (d *daemon3) state3() string {
	switch {
	case behaves(d.pipeDir, "initializing"):
		return "Initializing"
	case behaves(d.pipeDir, "fault"):
		return "Fault"
	}
	return "Ready"
}

// namespaceDelete refuses while there are clients: "--force allows deletion even with
// active clients".
func (d *daemon3) namespaceDelete(w words3) ([]string, error) {
	s, n, err := d.namespace3(w.word(0), w.options["server"])
	if err == nil {
		err = w.only("server", "force")
	}
	if err != nil {
		return nil, err
	}
	_, force := w.options["force"]
	switch {
	case n.name == "default":
		return nil, errors.New("the default namespace cannot be deleted")
	case s.within(n.name) > 0 && !force:
		return nil, fmt.Errorf("namespace %q has active clients", n.name)
	}
	n.drop()
	delete(s.namespaces, n.name)
	return nil, nil
}

func (d *daemon3) namespaceList(w words3) (lines []string, err error) {
	if err := w.only("server", "format"); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(d.servers)) {
		if w.options["server"] != "" && w.options["server"] != name {
			continue
		}
		s := d.servers[name]
		for _, n := range slices.Sorted(maps.Keys(s.namespaces)) {
			if w.word(0) == "" || w.word(0) == n {
				lines = append(lines, strings.Join(s.namespaces[n].columns(s, d.state3()), ","))
			}
		}
	}
	if w.options["server"] != "" && d.servers[w.options["server"]] == nil {
		return nil, fmt.Errorf("server %q not found", w.options["server"])
	}
	return lines, nil
}

// columns are "name, server, server-status, pinned-memory-limit, active-thread-percentage,
// client-priority, pipe-directory".
func (n *namespace3) columns(s *server3, state string) []string {
	percent := "-"
	if n.percent > 0 {
		percent = fmt.Sprintf("%d.00", n.percent)
	}
	return []string{n.name, s.name, state, amount3(n.memory), percent, cmpOr(n.priority, "-"), n.dir}
}

func (d *daemon3) namespaceGet(w words3) ([]string, error) {
	s, n, err := d.namespace3(w.word(0), w.word(1))
	if err != nil {
		return nil, err
	}
	fields := []string{"name", "server", "server-status", "pinned-memory-limit", "active-thread-percentage", "client-priority", "pipe-directory"}
	at := slices.Index(fields, w.word(2))
	if at < 0 {
		return nil, fmt.Errorf("unknown field %q", w.word(2))
	}
	return n.columns(s, d.state3())[at : at+1], nil
}

// namespaceSet "fails while the namespace has an active client" (kai-gpu-fractioning, on
// 615). No page says that 620 does not.
func (d *daemon3) namespaceSet(name, server string, w words3) ([]string, error) {
	s, n, err := d.namespace3(name, server)
	if err != nil {
		return nil, err
	}
	changes := maps.Clone(w.options)
	delete(changes, "server")
	switch {
	case len(changes) == 0:
		return nil, errors.New("at least one option flag is required")
	case s.within(n.name) > 0 && !(d.release >= 620 && behaves(d.pipeDir, "live-limits")):
		return nil, fmt.Errorf("namespace %q has active clients", n.name)
	case behaves(d.pipeDir, "lie"):
		return nil, nil
	}
	next := *n
	for key, value := range changes {
		switch key {
		case "cgroup":
			next.cgroup = value
		case "cgroup-depth", "device":
		case "sm-partition":
			if s.partitions[value] == nil {
				return nil, fmt.Errorf("there is no partition %q", value)
			}
			next.partition = value
		default:
			if err := next.set(strings.ReplaceAll(key, "-", "_"), value); err != nil {
				return nil, err
			}
		}
	}
	*n = next
	guarantee, most := d.multiprocessorsOf(s, n)
	_, _ = s.control.Write(fmt.Appendf(nil, "limits %s %d %d %d", n.name, n.memory, guarantee, most))
	return nil, nil
}

func (d *daemon3) clientList(w words3) (lines []string, err error) {
	_, all := w.options["all"]
	for _, name := range slices.Sorted(maps.Keys(d.servers)) {
		if w.options["server"] != "" && w.options["server"] != name || w.options["server"] == "" && !all {
			continue
		}
		s := d.servers[name]
		for _, pid := range slices.Sorted(maps.Keys(s.clients)) {
			command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			lines = append(lines, fmt.Sprintf("%d,%s,0,%s,%s", pid, name, s.clients[pid].namespace, strings.ReplaceAll(strings.TrimRight(string(command), "\x00"), "\x00", " ")))
		}
	}
	return lines, nil
}

// clientTerminate ends a client's connection to its server.
func (d *daemon3) clientTerminate(w words3) ([]string, error) {
	pid, err := strconv.ParseInt(w.word(0), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is not a process", w.word(0))
	}
	for _, s := range d.servers {
		if s.clients[int32(pid)] != nil && !behaves(d.pipeDir, "stubborn") {
			_, err := s.control.Write(fmt.Appendf(nil, "terminate %d", pid))
			return nil, err
		}
	}
	return nil, fmt.Errorf("client %d not found", pid)
}

func (d *daemon3) partitionCreate(w words3) ([]string, error) {
	allowed := []string{"server", "device", "chunks", "include-remainder"}
	if d.release >= 620 {
		allowed = append(allowed, "shareable", "max-chunks")
	}
	s, err := d.server3(w.options["server"])
	if err == nil {
		err = w.only(allowed...)
	}
	if err != nil {
		return nil, err
	}
	most, err := strconv.Atoi(cmpOr(w.options["max-chunks"], "0"))
	if err != nil {
		return nil, fmt.Errorf("max chunks %q is not a number", w.options["max-chunks"])
	}
	id, err := d.createPartition(s, w.options["device"], w.word(0), w.options["chunks"], w.options["shareable"] == "true", most)
	if err != nil {
		return nil, err
	}
	_, chunk := d.chunkSize()
	return []string{fmt.Sprintf("SM partition '%s' created on device %s (sm-count=%d)", w.word(0), d.device, len(s.partitions[w.word(0)].chunks)*chunk),
		"CUDA_MPS_SM_PARTITION=" + d.device + "/" + id}, nil
}

// partitionDelete refuses a partition with clients: "Partitions cannot be removed while
// clients are actively using them" (When to Use MPS).
func (d *daemon3) partitionDelete(w words3) ([]string, error) {
	s, err := d.server3(w.options["server"])
	if err == nil {
		err = w.only("server", "device")
	}
	if err != nil {
		return nil, err
	}
	if s.partitions[w.word(0)] == nil {
		return nil, fmt.Errorf("there is no partition %q", w.word(0))
	}
	for _, n := range s.namespaces {
		if n.partition == w.word(0) && s.within(n.name) > 0 {
			return nil, fmt.Errorf("partition %q has active clients", w.word(0))
		}
	}
	delete(s.partitions, w.word(0))
	return []string{fmt.Sprintf("SM partition '%s' deleted from device %s", w.word(0), d.device)}, nil
}

// partitionList has "server, device, name, chunks, sm-count, include-remainder, status,
// visible-uuid", and a row of the unallocated chunks.
func (d *daemon3) partitionList(w words3) (lines []string, err error) {
	all, chunk := d.chunkSize()
	free := all / chunk
	for _, name := range slices.Sorted(maps.Keys(d.servers)) {
		s := d.servers[name]
		for _, p := range slices.Sorted(maps.Keys(s.partitions)) {
			n := len(s.partitions[p].chunks)
			free -= n
			lines = append(lines, fmt.Sprintf("%s,%s,%s,%d,%d,false,created,%s", name, d.device, p, n, n*chunk, s.partitions[p].id))
		}
	}
	if free > 0 {
		lines = append(lines, fmt.Sprintf("%s,%s,-,%d,%d,-,unallocated,-", cmpOr(w.options["server"], "-"), d.device, free, free*chunk))
	}
	return lines, nil
}
