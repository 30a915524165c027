// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// server3 is a named server: a process, with the namespaces and partitions that end with it.
type server3 struct {
	name, allowed string
	uid           int
	cmd           *exec.Cmd
	listener      *net.UnixListener
	// control leads to the server's process, ended is closed when that is gone.
	control    connection
	ended      chan struct{}
	namespaces map[string]*namespace3
	partitions map[string]*partition3
	clients    map[int32]*client3
}

// namespace3 has limits of its own: it inherits none from its server, and one that sets
// none has the whole GPU (Dynamo, "Per-GPU compute and memory limits with MPS").
type namespace3 struct {
	name, dir string
	listener  *net.UnixListener
	memory    int64 // bytes, 0 for none
	percent   int
	priority  string
	cgroup    string
	depth     int
	partition string
}

type partition3 struct {
	id        string
	chunks    []int
	shareable bool
	most      int
}

// client3 is a program that a server serves.
type client3 struct {
	pid       int32
	namespace string
}

// "Server and namespace names must be lowercase letters, digits, and underscores only, up
// to 64 characters" (MPS v3 Interface).
var name3 = regexp.MustCompile(`^[a-z0-9_]{1,64}$`)

func (d *daemon3) createServer(name string, uid int, allowed string) (*server3, error) {
	switch {
	case !name3.MatchString(name):
		return nil, fmt.Errorf("invalid server name %q", name)
	case d.servers[name] != nil:
		return nil, fmt.Errorf("server %q already exists", name)
	case d.multiuser && uid != 0:
		return nil, errors.New("in multiuser mode, only --uid=0 is allowed")
	}
	s := &server3{name: name, uid: uid, allowed: allowed, ended: make(chan struct{}),
		namespaces: map[string]*namespace3{}, partitions: map[string]*partition3{}, clients: map[int32]*client3{}}
	if _, err := d.createNamespace(s, "default"); err != nil {
		return nil, err
	}
	// "server listener socket (routes to the default namespace)"
	var err error
	if s.listener, err = listen(filepath.Join(d.pipeDir, name), "control", 0o666); err != nil {
		return nil, err
	}
	go d.accept(s.listener, name, "default")
	if err := d.startServer3(s); err != nil {
		return nil, err
	}
	d.servers[name] = s
	return s, nil
}

// startServer3 starts a server's process. One that may use no GPU of the machine is made
// all the same, and ends: "server create returns success, but the server process exits with
// no CUDA-capable device is detected and disappears from server list" (Dynamo).
func (d *daemon3) startServer3(s *server3) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs, ours := os.NewFile(uintptr(pair[0]), "server"), os.NewFile(uintptr(pair[1]), "server")
	defer theirs.Close()
	defer ours.Close()
	logs := filepath.Join(os.Getenv("CUDA_MPS_LOG_DIRECTORY"), s.name)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	s.cmd = exec.Command(self, d.pipeDir)
	s.cmd.Args[0] = serverName
	s.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "CUDA_MPS_LOG_DIRECTORY=") || v == serveVariable
	}), "CUDA_MPS_LOG_DIRECTORY="+logs, server3Variable+s.allowed)
	if d.multiuser {
		s.cmd.Args = append(s.cmd.Args, multiUserFlag)
	}
	s.cmd.ExtraFiles = []*os.File{theirs}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(s.uid), Gid: uint32(s.uid), NoSetGroups: true}}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		return err
	}
	s.control = connection{mpswire.Conn{UnixConn: conn.(*net.UnixConn)}}
	d.log(fmt.Sprintf("Starting new server %d for user %d", s.cmd.Process.Pid, s.uid))
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
		d.gone <- s
	}()
	go d.hear(s)
	return nil
}

// hear takes the clients of a server off its list as they go.
func (d *daemon3) hear(s *server3) {
	for {
		pid, err := s.control.Receive32()
		if err != nil {
			return
		}
		d.left <- departure{s, int32(pid)}
	}
}

func (d *daemon3) createNamespace(s *server3, name string) (*namespace3, error) {
	switch {
	case !name3.MatchString(name):
		return nil, fmt.Errorf("invalid namespace name %q", name)
	case s.namespaces[name] != nil:
		return nil, fmt.Errorf("namespace %q already exists on server %q", name, s.name)
	}
	n := &namespace3{name: name, dir: filepath.Join(d.pipeDir, s.name, name)}
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if n.listener, err = listen(n.dir, "control", 0o666); err != nil {
		return nil, err
	}
	go d.accept(n.listener, s.name, name)
	s.namespaces[name] = n
	return n, nil
}

// drop ends a namespace's socket, and its directory.
func (n *namespace3) drop() {
	n.listener.Close()
	_ = os.RemoveAll(n.dir)
}

// set changes a limit. Memory is in "4G, 512M, 1024K", percents from 1 to 100, priorities
// "0 (normal) or 1 (below normal)".
func (n *namespace3) set(key, value string) error {
	switch key {
	case "pinned_memory_limit":
		bytes, err := bytes3(value)
		n.memory = bytes
		return err
	case "active_thread_percentage":
		percent, err := strconv.Atoi(value)
		if err != nil || percent < 1 || percent > 100 {
			return fmt.Errorf("active thread percentage %q is not from 1 to 100", value)
		}
		n.percent = percent
	case "client_priority":
		if value != "0" && value != "1" {
			return fmt.Errorf("client priority %q is not 0 or 1", value)
		}
		n.priority = value
	}
	return nil
}

func bytes3(value string) (int64, error) {
	units := map[byte]int64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}
	if len(value) > 1 {
		if number, err := strconv.ParseInt(value[:len(value)-1], 10, 64); err == nil && number > 0 && units[value[len(value)-1]] > 0 {
			return number * units[value[len(value)-1]], nil
		}
	}
	return 0, fmt.Errorf("memory limit %q is not an amount", value)
}

// amount3 prints a limit as v2 does, rounded down to whole GiB where there is one.
func amount3(bytes int64) string {
	switch {
	case bytes == 0:
		return "-"
	case bytes >= 1<<30:
		return fmt.Sprintf("%dG", bytes>>30)
	}
	return fmt.Sprintf("%dM", bytes>>20)
}

// chunkSize is how many multiprocessors a chunk has, of how many.
func (d *daemon3) chunkSize() (all, chunk int) { return multiprocessors(d.pipeDir) }

// createPartition is "rejected if the target device already has active clients … or if the
// device does not have enough free chunks remaining" (MPS v3 Interface). Whether 620 rejects
// the former too its page was not there to say: the line "partitions-beside-clients" lets it.
func (d *daemon3) createPartition(s *server3, device, name, amount string, shareable bool, most int) (string, error) {
	all, chunk := d.chunkSize()
	chunks, err := strconv.Atoi(amount)
	switch {
	case err != nil || chunks < 1:
		return "", fmt.Errorf("chunks must be a positive integer, not %q", amount)
	case device != d.device && device != "0":
		return "", fmt.Errorf("device %q not found", device)
	case s.partitions[name] != nil:
		return "", fmt.Errorf("partition %q already exists", name)
	case most != 0 && (!shareable || most < chunks || most > all/chunk):
		return "", fmt.Errorf("max chunks %d is not valid", most)
	case len(s.clients) > 0 && !(d.release >= 620 && behaves(d.pipeDir, "partitions-beside-clients")):
		return "", errors.New("the device has active clients")
	}
	var free []int
	for n := range all / chunk {
		if !slices.ContainsFunc(d.allPartitions(), func(p *partition3) bool { return slices.Contains(p.chunks, n) }) {
			free = append(free, n)
		}
	}
	if len(free) < chunks {
		return "", errors.New("not enough free chunks: CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION")
	}
	mask := make([]byte, 24)
	mask[23] = 3 // "encoded differently in MPS v3 than in Legacy MPS v2"
	for _, n := range free[:chunks] {
		mask[n/8] |= 1 << (n % 8)
	}
	id := base64.StdEncoding.EncodeToString(mask)
	s.partitions[name] = &partition3{id: id, chunks: free[:chunks], shareable: shareable, most: max(most, chunks)}
	return id, nil
}

func (d *daemon3) allPartitions() (all []*partition3) {
	for _, s := range d.servers {
		for _, p := range s.partitions {
			all = append(all, p)
		}
	}
	return all
}
