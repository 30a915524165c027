// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

const (
	// serveVariable is how the program tells itself to be the daemon.
	serveVariable = "MPS_STAND_IN_SERVE=yes"
	pidFile       = "nvidia-cuda-mps-control.pid"
)

var (
	// errRunning is what a second daemon of one pipe directory says.
	//
	//lint:ignore ST1005 The original says it so.
	errRunning = errors.New("An instance of this daemon is already running")
	// errCrash ends a daemon without cleaning up.
	errCrash = errors.New("told to crash")
)

// daemonise starts the daemon and returns once it serves.
func daemonise(pipeDir string, args []string) error {
	if behaves(pipeDir, "refuse") {
		return errors.New("cannot start: told to refuse")
	}
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer read.Close()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own binary: %w", err)
	}
	cmd := exec.Command(self, append([]string{"-d"}, args...)...)
	cmd.Env = append(os.Environ(), serveVariable)
	cmd.ExtraFiles = []*os.File{write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return fmt.Errorf("start daemon: %w", err)
	}
	line, _ := bufio.NewReader(read).ReadString('\n')
	if line = strings.TrimSpace(line); line != "ready" {
		return errors.New(line)
	}
	return cmd.Process.Release()
}

// lockDir makes this process the daemon of a directory.
func lockDir(pipeDir string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(pipeDir, "control_lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		return nil, errRunning
	}
	return lock, nil
}

// serve is the daemon. It reports to its parent on descriptor 3.
func serve(pipeDir string, b branch, args []string) error {
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
	_ = lock.Chmod(0o666)
	open, err := listen(pipeDir, "control", 0o666)
	if err != nil {
		return report(err)
	}
	privileged, err := listen(pipeDir, "control_privileged", 0o755)
	if err != nil {
		return report(err)
	}
	pipe := filepath.Join(pipeDir, "log")
	_ = os.Remove(pipe)
	if err := errors.Join(syscall.Mkfifo(pipe, 0o777), os.Chmod(pipe, 0o777)); err != nil {
		return report(err)
	}
	logs, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		return report(err)
	}
	if b.status {
		path := filepath.Join(pipeDir, pidFile)
		if err := errors.Join(os.WriteFile(path, fmt.Append(nil, os.Getpid()), 0o666), os.Chmod(path, 0o666)); err != nil {
			return report(err)
		}
	}
	d := &daemon{branch: b, pipeDir: pipeDir, args: args, percent: 100, memory: map[uint32]uint64{}, partitions: partitions{}}
	d.log("Starting control daemon using socket " + filepath.Join(pipeDir, "control"))
	d.log("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=" + pipeDir)
	go d.readLogs(logs)
	fmt.Fprintln(parent, "ready")
	parent.Close()
	return d.serve(open, privileged)
}

// listen takes the place of an earlier daemon's socket.
func listen(pipeDir, name string, mode os.FileMode) (*net.UnixListener, error) {
	path := filepath.Join(pipeDir, name)
	_ = os.Remove(path)
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("take pipe directory: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	return listener, os.Chmod(path, mode)
}

// daemon keeps its settings. Like the original it does one thing at a time:
// who connects and stays silent holds up everyone else.
type daemon struct {
	branch
	pipeDir  string
	args     []string
	percent  float64
	memory   map[uint32]uint64
	priority uint32
	server   *registered
	pending  []client
	partitions
	// stuck is set for good when something else than a log is written to the log's
	// FIFO.
	stuck atomic.Bool
}

// registered is the server that the daemon started; it has no connection until
// the server registers.
type registered struct {
	connection
	cmd    *exec.Cmd
	uid    string
	exited chan struct{}
}

type accepted struct {
	conn       connection
	privileged bool
}

// serve returns nil when it was told to quit.
func (d *daemon) serve(open, privileged *net.UnixListener) error {
	arrivals := make(chan accepted)
	accept := func(l *net.UnixListener, privileged bool) {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			arrivals <- accepted{connection{mpswire.Conn{UnixConn: conn}}, privileged}
		}
	}
	go accept(open, false)
	go accept(privileged, true)
	for {
		d.waitWhileStuck()
		var exited chan struct{}
		if d.server != nil {
			exited = d.server.exited
		}
		select {
		case <-exited:
			d.log(fmt.Sprintf("Server %d exited with status %d", d.server.cmd.Process.Pid, d.server.cmd.ProcessState.ExitCode()))
			d.server, d.partitions = nil, partitions{}
			d.passPending()
		case a := <-arrivals:
			d.log("Accepting connection...")
			if quit, err := d.greet(a); quit || err != nil {
				return err
			}
		}
	}
}

// greet learns who has connected, and waits for that as long as it takes.
func (d *daemon) greet(a accepted) (quit bool, err error) {
	who, err := a.conn.Greet()
	if err != nil {
		d.log("User did not send valid credentials")
		a.conn.Close()
		return false, nil
	}
	kind, err := a.conn.Receive32()
	if err != nil {
		a.conn.Close()
		return false, nil
	}
	switch mpswire.Kind(kind) {
	case mpswire.KindServer:
		d.register(a.conn)
	case mpswire.KindClient:
		d.takeClient(client{a.conn, who})
	case mpswire.KindDebuggee:
		d.log(fmt.Sprintf("NEW DEBUGGEE %d from user %d", who.Pid, who.Uid))
		d.shutDownServer()
		a.conn.Close()
	case mpswire.KindUI:
		d.log("NEW UI")
		quit, err := d.converse(a)
		a.conn.Close()
		return quit, err
	default:
		d.log("Unknown type of connection") // and it stays open
	}
	return false, nil
}

// register tells a new server its limits.
func (d *daemon) register(c connection) {
	if d.server == nil || d.server.UnixConn != nil {
		c.Close()
		return
	}
	d.log(fmt.Sprintf("NEW SERVER %d: Ready", d.server.cmd.Process.Pid))
	if _, err := c.Receive(); err != nil {
		c.Close()
		return
	}
	_ = c.SendFloat(d.percent)
	if d.branch.memory {
		_ = c.Send64(memoryDevices)
		for device := range uint32(memoryDevices) {
			_ = c.Send64(d.memory[device])
		}
		_ = c.Send32(d.priority)
	}
	d.server.connection = c
	d.passPending()
}

// startServer starts the server; there can be one.
func (d *daemon) startServer(uid string) {
	if d.server != nil {
		return
	}
	self, err := os.Executable()
	if err != nil {
		return
	}
	cmd := exec.Command(self, slices.DeleteFunc(slices.Clone(d.args), func(arg string) bool { return arg != multiUserFlag })...)
	cmd.Args[0] = serverName
	if err := cmd.Start(); err != nil {
		d.log("Failed to start server: " + err.Error())
		return
	}
	d.log(fmt.Sprintf("Starting new server %d for user %s", cmd.Process.Pid, uid))
	d.server = &registered{cmd: cmd, uid: uid, exited: make(chan struct{})}
	go func(s *registered) {
		_ = cmd.Wait()
		close(s.exited)
	}(d.server)
}

// converse answers a UI until it has no more commands.
func (d *daemon) converse(a accepted) (quit bool, err error) {
	for {
		packet, err := a.conn.Receive()
		if err != nil || len(packet) < 8 || binary.LittleEndian.Uint64(packet) == 0 {
			break
		}
		line, err := a.conn.Receive()
		if err != nil {
			break
		}
		for behaves(d.pipeDir, "hang") {
			time.Sleep(10 * time.Millisecond)
		}
		if behaves(d.pipeDir, "crash") {
			return true, errCrash
		}
		command := strings.TrimRight(string(line), "\n\x00")
		d.log("Cmd:" + command)
		answer, ends := d.answer(strings.Fields(command), a.privileged)
		if ends {
			d.end()
			_, _ = a.conn.Receive() // unread bytes would reset the connection
			_, _ = a.conn.Write([]byte{uiDone, 0, 0, 0, 0, 0, 0, 0})
			return true, nil
		}
		for _, line := range answer {
			d.log(line)
			_, _ = a.conn.Write(append(make([]byte, 4), line...))
		}
	}
	d.log("UI closed")
	_, _ = a.conn.Write([]byte{uiDone, 0, 0, 0, 0, 0, 0, 0})
	return false, nil
}

// end ends the server, and removes what the original removes: the sockets stay.
func (d *daemon) end() {
	if d.server != nil {
		_ = d.server.cmd.Process.Kill()
		<-d.server.exited
		d.log(fmt.Sprintf("Server %d exited with status 0", d.server.cmd.Process.Pid))
	}
	_, _ = os.Remove(filepath.Join(d.pipeDir, pidFile)), os.Remove(filepath.Join(d.pipeDir, "log"))
	d.log("Removed Shm file at ")
	d.log("Exit with status 0")
}

// log writes a line as the original does.
func (d *daemon) log(line string) {
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
