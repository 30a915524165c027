package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const (
	// serveFlag is how the program runs itself as the daemon.
	serveFlag   = "--serve"
	endOfAnswer = "."
	pidFile     = "nvidia-cuda-mps-control.pid"
)

var (
	// errRunning is what a second daemon of one pipe directory says.
	errRunning = errors.New("an instance of this daemon is already running")
	// errCrash ends a daemon without cleaning up.
	errCrash = errors.New("told to crash")
)

// daemonise starts the daemon and returns once it serves.
func daemonise(pipeDir string) error {
	if behaviour(pipeDir) == "refuse" {
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
	cmd := exec.Command(self, serveFlag)
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

// serve is the daemon. It reports to its parent on descriptor 3.
func serve(pipeDir string) error {
	parent := os.NewFile(3, "parent")
	defer parent.Close()
	listener, err := listen(pipeDir)
	if err != nil {
		fmt.Fprintln(parent, err)
		return err
	}
	defer listener.Close()
	pid := filepath.Join(pipeDir, pidFile)
	if err := os.WriteFile(pid, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		fmt.Fprintln(parent, err)
		return err
	}
	fmt.Fprintln(parent, "ready")
	parent.Close()
	d := &daemon{pipeDir: pipeDir, percent: 100, memory: map[string]string{}, ended: make(chan error, 1)}
	go d.accept(listener)
	if err := <-d.ended; err != nil {
		listener.SetUnlinkOnClose(false)
		return err
	}
	return os.Remove(pid)
}

// listen takes the pipe directory, unless a daemon that lives has it.
func listen(pipeDir string) (*net.UnixListener, error) {
	path := filepath.Join(pipeDir, "control")
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, errRunning
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("take pipe directory: %w", err)
	}
	return listener, os.Chmod(path, 0o666)
}

// daemon keeps what it was told.
type daemon struct {
	pipeDir string
	// ended takes how the daemon ends: nil when it was told to quit.
	ended chan error

	mu      sync.Mutex
	percent float64
	memory  map[string]string
}

func (d *daemon) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go d.converse(conn)
	}
}

// end ends the daemon; only the first reason counts.
func (d *daemon) end(reason error) {
	select {
	case d.ended <- reason:
	default:
	}
}

func (d *daemon) converse(conn net.Conn) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		switch behaviour(d.pipeDir) {
		case "hang":
			continue
		case "crash":
			d.end(errCrash)
			return
		}
		for _, line := range d.answer(strings.Fields(lines.Text())) {
			fmt.Fprintln(conn, line)
		}
		fmt.Fprintln(conn, endOfAnswer)
	}
}

// answer carries a command out.
func (d *daemon) answer(words []string) []string {
	if len(words) == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	lying := behaviour(d.pipeDir) == "lie"
	switch {
	case words[0] == "get_server_list", words[0] == "get_client_list", words[0] == "ps":
		return nil
	case words[0] == "get_default_active_thread_percentage" && lying:
		return []string{"7.0"}
	case words[0] == "get_default_active_thread_percentage":
		return []string{fmt.Sprintf("%.1f", d.percent)}
	case words[0] == "set_default_active_thread_percentage" && len(words) == 2:
		percent, err := strconv.ParseFloat(words[1], 64)
		if err != nil || percent <= 0 || percent > 100 {
			return []string{"Invalid percentage: " + words[1]}
		}
		d.percent = percent
		return []string{fmt.Sprintf("%.1f", d.percent)}
	case words[0] == "get_default_device_pinned_mem_limit" && len(words) == 2:
		return []string{d.memory[words[1]]}
	case words[0] == "set_default_device_pinned_mem_limit" && len(words) == 3:
		d.memory[words[1]] = words[2]
		return nil
	case words[0] == "quit":
		d.end(nil)
		return nil
	}
	return []string{"Unrecognized command: " + strings.Join(words, " ")}
}

// behaviour is how the daemon was told to misbehave.
func behaviour(pipeDir string) string {
	word, err := os.ReadFile(filepath.Join(pipeDir, "behaviour"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(word))
}
