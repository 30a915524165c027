// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// MPS v3 as docs.nvidia.com/deploy/mps/615 and /620 have it, and where those say nothing,
// as it was measured on 615.71.09: by NVIDIA's Dynamo ("Per-GPU compute and memory limits
// with MPS"), and by kai-gpu-fractioning ("Insufficient privileges for UID", namespaces that
// cannot be changed while they have clients). What no page says is as strict as v2 is, or as
// 615 is. The wire format is that of v2.
//
// The page of 620 has routing by control group, and partitions of namespaces; commands for
// them could not be read there, and are by the rule that flags are keys with dashes. Lines
// of "behavior" make open points kinder: "live-limits" lets limits change under clients,
// "partitions-beside-clients" lets partitions be made beside them. "kill-asker 3 before" has
// the third command from then on kill the process that asks, before it is carried out; with
// "after" it is carried out first.

// daemon3 does one thing at a time, as v2 does.
type daemon3 struct {
	release         int
	pipeDir, device string
	multiuser       bool
	servers         map[string]*server3
	arrivals        chan arrival3
	gone            chan *server3
	left            chan departure
	// killing is the line of "behavior" that is obeyed, and asked how many commands came since.
	killing string
	asked   int
}

// arrival3 is a connection to a namespace's socket; without a server it came to the
// daemon's own.
type arrival3 struct {
	conn              connection
	server, namespace string
}

type departure struct {
	server *server3
	pid    int32
}

const (
	server3Name     = "MPS_STAND_IN_SERVER3"
	server3Variable = server3Name + "=v3 "
	// protocolFile tells later invocations which protocol the daemon has: "any new
	// invocation automatically follows that daemon's protocol version".
	protocolFile = ".protocol3"
)

// run3 does what v3 is for: done is false where v2 is meant.
func run3(pipeDir string, b branch, args []string) (done bool, code int, err error) {
	protocol, config, rest := "2", "", []string{}
	daemon, multiuser, help, quit := false, false, false, false
	for i := 0; i < len(args); i++ {
		value := func() string {
			if i++; i < len(args) {
				return args[i]
			}
			return ""
		}
		switch args[i] {
		case "-p", "--protocol":
			protocol = value()
		case "-a", "--apply":
			config = value()
		case "-d", "--daemon":
			daemon = true
		case "-m", "--multiuser":
			multiuser = true
		case "-h", "--help":
			help = true
		case "-q", "--quit":
			quit = true
		default:
			rest = append(rest, args[i])
		}
	}
	if daemon { // it takes the place of one that was killed
		_ = os.Remove(filepath.Join(pipeDir, protocolFile))
	}
	if p := os.Getenv("CUDA_MPS_PROTOCOL_VERSION"); p != "" {
		protocol = p // "the environment variable takes precedence"
	}
	if text, err := os.ReadFile(filepath.Join(pipeDir, protocolFile)); err == nil && alive(atoi(string(text))) {
		protocol = "3"
	}
	switch {
	case protocol != "2" && protocol != "3":
		return true, 1, fmt.Errorf("protocol %q is not 2 or 3", protocol)
	case protocol == "2":
		return false, 0, nil
	case help:
		fmt.Println("CUDA MPS Control for Linux/Unix\nmodules: server namespace client device sm-partition feature memacct context-share")
		return true, 0, nil
	case daemon && slices.Contains(os.Environ(), serveVariable):
		return true, 1, serve3(pipeDir, b.release, multiuser, config)
	case daemon && len(rest) > 0:
		return true, 1, fmt.Errorf("unknown option %q", rest[0])
	case daemon:
		if err := daemonise(pipeDir, args[1:]); err != nil {
			return true, 1, err
		}
		return true, 0, nil
	case quit:
		rest = []string{"quit"}
	}
	code, err = command3(pipeDir, rest)
	return true, code, err
}

func atoi(text string) (n int) {
	_, _ = fmt.Sscan(text, &n)
	return n
}

// command3 has the daemon carry out a command, and prints its answer.
func command3(pipeDir string, words []string) (int, error) {
	conn, err := dial(pipeDir, "control", mpswire.KindUI)
	if err != nil {
		//lint:ignore ST1005 The original of v2 says it so.
		return 1, errors.New("Cannot find MPS control daemon process")
	}
	defer conn.Close()
	line := strings.Join(words, "\x1f") + "\x00"
	if conn.Send64(uint64(len(line))) != nil {
		return 1, nil
	}
	_, _ = conn.Write([]byte(line))
	_ = conn.Send64(0)
	for {
		packet, err := conn.Receive()
		if err != nil || len(packet) < 4 {
			return 1, nil
		}
		if binary.LittleEndian.Uint32(packet) == uiDone {
			return int(packet[4]), nil
		}
		fmt.Println(string(packet[4:]))
	}
}

func serve3(pipeDir string, release int, multiuser bool, config string) error {
	parent := os.NewFile(3, "parent")
	defer parent.Close()
	report := func(err error) error {
		fmt.Fprintln(parent, err)
		return err
	}
	lock, err := lockDir(pipeDir)
	if err != nil {
		return report(err)
	}
	defer lock.Close()
	d := &daemon3{release: release, pipeDir: pipeDir, device: os.Getenv("CUDA_VISIBLE_DEVICES"), multiuser: multiuser,
		servers: map[string]*server3{}, arrivals: make(chan arrival3), gone: make(chan *server3), left: make(chan departure)}
	if config != "" {
		if err := d.apply(config); err != nil {
			d.end()
			return report(fmt.Errorf("%s: %w", config, err))
		}
	}
	open, err := listen(pipeDir, "control", 0o666)
	if err == nil {
		err = os.WriteFile(filepath.Join(pipeDir, protocolFile), fmt.Append(nil, os.Getpid()), 0o644)
	}
	if err != nil {
		return report(err)
	}
	go d.accept(open, "", "")
	d.log("To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY=" + pipeDir)
	fmt.Fprintln(parent, "ready")
	parent.Close()
	for {
		select {
		case s := <-d.gone:
			d.forget(s)
		case l := <-d.left:
			delete(l.server.clients, l.pid)
		case a := <-d.arrivals:
			if d.greet(a) {
				d.end()
				return nil
			}
		}
	}
}

func (d *daemon3) accept(l *net.UnixListener, server, namespace string) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		d.arrivals <- arrival3{connection{mpswire.Conn{UnixConn: conn}}, server, namespace}
	}
}

// forget takes a server whose process has ended off the list, with all that was its.
func (d *daemon3) forget(s *server3) {
	d.log(fmt.Sprintf("Server %d exited with status %d", s.cmd.Process.Pid, s.cmd.ProcessState.ExitCode()))
	for _, n := range s.namespaces {
		n.drop()
	}
	s.listener.Close()
	s.control.Close()
	_ = os.RemoveAll(filepath.Join(d.pipeDir, s.name))
	delete(d.servers, s.name)
}

func (d *daemon3) end() {
	for _, s := range d.servers {
		_ = s.cmd.Process.Kill()
		for ended := false; !ended; {
			select {
			case <-s.ended:
				ended = true
			case <-d.gone:
			case <-d.left:
			}
		}
	}
	_ = os.Remove(filepath.Join(d.pipeDir, protocolFile))
}

// greet learns who has connected. Its process and user are the kernel's word
// (SO_PEERCRED), since a client is placed by its control group.
func (d *daemon3) greet(a arrival3) (quit bool) {
	_ = a.conn.SetDeadline(time.Now().Add(10 * time.Second))
	who, err := a.conn.Greet()
	peer := peer3(a.conn)
	kind, err2 := a.conn.Receive32()
	if err != nil || err2 != nil || peer == nil {
		a.conn.Close()
		return false
	}
	_ = a.conn.SetDeadline(time.Time{})
	switch mpswire.Kind(kind) {
	case mpswire.KindUI:
		defer a.conn.Close()
		return d.converse(a.conn, peer)
	case mpswire.KindClient:
		d.takeClient3(a, who, peer)
	default:
		a.conn.Close()
	}
	return false
}

func peer3(c connection) (who *unix.Ucred) {
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { who, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	}
	return who
}

// route finds the namespace of a client that came to the daemon's own socket: "for the
// main daemon control socket, by its cgroup or UID" (620), by its UID alone before.
func (d *daemon3) route(peer *unix.Ucred) (*server3, *namespace3, error) {
	groups, _ := cgroup.Of(int(peer.Pid))
	for _, s := range d.servers {
		for _, n := range s.namespaces {
			if n.cgroup != "" && cgroup.Within(groups, strings.TrimPrefix(n.cgroup, "/sys/fs/cgroup")) {
				return s, n, nil
			}
		}
	}
	uid := int(peer.Uid)
	if d.multiuser {
		uid = 0
	}
	// "each connecting UID is automatically served by a uid_<uid> server" (Common Tasks).
	name := fmt.Sprintf("uid_%d", uid)
	s := d.servers[name]
	if s == nil {
		var err error
		if s, err = d.createServer(name, uid, ""); err != nil {
			return nil, nil, err
		}
	}
	return s, s.namespaces["default"], nil
}

// takeClient3 connects a client with a server, under the limits of a namespace.
func (d *daemon3) takeClient3(a arrival3, who unix.Ucred, peer *unix.Ucred) {
	defer a.conn.Close()
	var s *server3
	var n *namespace3
	var err error
	if a.server == "" {
		s, n, err = d.route(peer)
	} else if s = d.servers[a.server]; s != nil {
		n = s.namespaces[a.namespace]
	}
	switch {
	case err != nil || s == nil || n == nil:
		d.log(fmt.Sprintf("client %d: there is no namespace for it: %v", who.Pid, err))
		return
	case !d.multiuser && int(who.Uid) != s.uid:
		d.log(fmt.Sprintf("client %d of user %d: CUDA_ERROR_NOT_PERMITTED", who.Pid, who.Uid))
		return
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	d.log(fmt.Sprintf("NEW CLIENT %d from user %d: namespace %s of server %s", who.Pid, who.Uid, n.name, s.name))
	s.clients[who.Pid] = &client3{who.Pid, n.name}
	guarantee, most := d.multiprocessorsOf(s, n)
	_, _ = s.control.Write(fmt.Appendf(nil, "client %d %s %d %d %d", who.Pid, n.name, n.memory, guarantee, most))
	_ = s.control.SendFile(pair[0])
	_ = a.conn.SendFile(pair[1])
	_, _ = unix.Close(pair[0]), unix.Close(pair[1])
	_ = a.conn.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = a.conn.Receive() // its status
}

// multiprocessorsOf is what the clients of a namespace may use: a partition's, with what
// it may borrow, or a percentage, "rounded down to a supported count. On a 188-SM GPU, 50%
// gives 94 and 25% gives 46" (Dynamo).
func (d *daemon3) multiprocessorsOf(s *server3, n *namespace3) (guarantee, most int) {
	all, chunk := d.chunkSize()
	if p := s.partitions[n.partition]; n.partition != "" && p != nil {
		return len(p.chunks) * chunk, p.most * chunk
	}
	if n.percent == 0 {
		return 0, all
	}
	return 0, all * n.percent / 100 &^ 1
}

// converse carries out commands.
func (d *daemon3) converse(c connection, peer *unix.Ucred) (quit bool) {
	code := byte(0)
	for {
		packet, err := c.Receive()
		if err != nil || len(packet) < 8 || binary.LittleEndian.Uint64(packet) == 0 {
			break
		}
		line, err := c.Receive()
		if err != nil {
			break
		}
		for behaves(d.pipeDir, "hang") {
			time.Sleep(10 * time.Millisecond)
		}
		if behaves(d.pipeDir, "crash") {
			os.Exit(1)
		}
		words := strings.Split(strings.TrimRight(string(line), "\x00"), "\x1f")
		d.log("Cmd:" + strings.Join(words, " "))
		kill := d.killsAsker()
		if kill == "before" {
			killAsker(peer)
			return false
		}
		var answer []string
		if words[0] == "quit" && peer.Uid == uint32(os.Getuid()) {
			quit = true
		} else if answer, err = d.answer3(words, peer); err != nil {
			answer, code = append(answer, err.Error()), 1
		}
		if kill == "after" {
			killAsker(peer)
			return quit
		}
		for _, line := range answer {
			d.log(line)
			_, _ = c.Write(append(make([]byte, 4), line...))
		}
	}
	_, _ = c.Write([]byte{uiDone, 0, 0, 0, code, 0, 0, 0})
	return quit
}

// killsAsker reports when the process that asks is to be killed, "" for not at all.
func (d *daemon3) killsAsker() string {
	line := ""
	for _, l := range behaviors(d.pipeDir) {
		if strings.HasPrefix(l, "kill-asker ") {
			line = l
		}
	}
	if line != d.killing {
		d.killing, d.asked = line, 0
	}
	d.asked++
	number, when := 0, ""
	if _, err := fmt.Sscanf(line, "kill-asker %d %s", &number, &when); err != nil || number != d.asked {
		return ""
	}
	return when
}

// killAsker kills the process that runs the control program, and that too.
func killAsker(peer *unix.Ucred) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", peer.Pid))
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) > 1 {
		if parent := atoi(fields[1]); parent > 1 {
			_ = unix.Kill(parent, unix.SIGKILL)
		}
	}
	_ = unix.Kill(int(peer.Pid), unix.SIGKILL)
}

func (d *daemon3) log(line string) {
	dir := os.Getenv("CUDA_MPS_LOG_DIRECTORY")
	if dir == "" {
		return
	}
	file, err := os.OpenFile(filepath.Join(dir, "control.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return
	}
	defer file.Close()
	fmt.Fprintf(file, "[%s Control %5d] %s\n", time.Now().Format("2006-01-02 15:04:05.000"), os.Getpid(), line)
}

// serveClients3 is a server's process: it holds its clients to the limits of their
// namespaces, as far as a program asks: "alloc 512" (MiB), "free 512", "sms" for
// the multiprocessors that it may use, "where" for its namespace. "environ 0=2G" says the
// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT that it has.
func serveClients3(pipeDir string) error {
	logLine("Startup")
	allowed := strings.TrimPrefix(os.Getenv(server3Name), "v3 ")
	if device := os.Getenv("CUDA_VISIBLE_DEVICES"); behaves(pipeDir, "no-server") || allowed != "" && !slices.Contains(strings.Split(allowed, ","), device) && allowed != "0" {
		logLine("Failed to start : " + errNoDevice.Error())
		return errNoDevice
	}
	conn, err := net.FileConn(os.NewFile(3, "daemon"))
	if err != nil {
		return err
	}
	daemon := connection{mpswire.Conn{UnixConn: conn.(*net.UnixConn)}}
	var mu sync.Mutex
	clients := map[int32]*limits3{}
	for {
		packet, err := daemon.Receive()
		if err != nil {
			return err // the daemon has ended
		}
		var c limits3
		if n, _ := fmt.Sscanf(string(packet), "terminate %d", &c.pid); n == 1 {
			mu.Lock()
			if client := clients[c.pid]; client != nil {
				_ = client.file.Close()
			}
			mu.Unlock()
			continue
		}
		if n, _ := fmt.Sscanf(string(packet), "limits %s %d %d %d", &c.namespace, &c.memory, &c.guarantee, &c.most); n == 4 {
			mu.Lock()
			for _, client := range clients {
				if client.namespace == c.namespace {
					client.memory, client.guarantee, client.most = c.memory, c.guarantee, c.most
				}
			}
			mu.Unlock()
			continue
		}
		if n, _ := fmt.Sscanf(string(packet), "client %d %s %d %d %d", &c.pid, &c.namespace, &c.memory, &c.guarantee, &c.most); n != 5 {
			continue
		}
		fd, err := daemon.ReceiveFile()
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), "client")
		client, err := net.FileConn(file)
		_ = file.Close()
		if err != nil {
			return err
		}
		c.file = client.(*net.UnixConn)
		mu.Lock()
		clients[c.pid] = &c
		mu.Unlock()
		go func() {
			c.serve(&mu)
			mu.Lock()
			delete(clients, c.pid)
			mu.Unlock()
			_ = daemon.Send32(uint32(c.pid))
		}()
	}
}

// limits3 are a client's.
type limits3 struct {
	pid             int32
	file            *net.UnixConn
	namespace       string
	memory, used    int64
	guarantee, most int
}

func (c *limits3) serve(mu *sync.Mutex) {
	defer c.file.Close()
	packet := make([]byte, 4096)
	for {
		n, err := c.file.Read(packet)
		if err != nil || n == 0 {
			return
		}
		words := strings.Fields(string(packet[:n]))
		if len(words) == 0 {
			continue
		}
		mu.Lock()
		reply := c.reply(words)
		mu.Unlock()
		if _, err := c.file.Write([]byte(reply)); err != nil {
			return
		}
	}
}

func (c *limits3) reply(words []string) string {
	var mib int64
	if len(words) > 1 {
		_, _ = fmt.Sscan(words[1], &mib)
	}
	switch words[0] {
	case "alloc":
		if c.memory > 0 && c.used+mib<<20 > c.memory {
			return "CUDA_ERROR_OUT_OF_MEMORY"
		}
		c.used += mib << 20
		return "ok"
	case "free":
		c.used -= mib << 20
		return "ok"
	case "sms":
		return fmt.Sprint(c.most)
	case "guarantee":
		return fmt.Sprint(c.guarantee)
	case "where":
		return c.namespace
	case "environ":
		return c.obey(words[1:])
	}
	return "CUDA_ERROR_NOT_SUPPORTED"
}

// obey takes a client's own limits: they can only lower a namespace's, and "if any entry
// names a GPU the process can't see, the client drops every pinned memory limit, including
// the namespace's" (Dynamo, measured on 615.71.09).
func (c *limits3) obey(value []string) string {
	device := os.Getenv("CUDA_VISIBLE_DEVICES")
	for _, entry := range strings.Split(strings.Join(value, ""), ",") {
		of, amount, _ := strings.Cut(entry, "=")
		bytes, err := bytes3(amount)
		switch {
		case of != "0" && of != device:
			c.memory = 0
			return "dropped"
		case err == nil && (c.memory == 0 || bytes < c.memory):
			c.memory = bytes
		}
	}
	return "ok"
}
