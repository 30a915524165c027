// SPDX-License-Identifier: MPL-2.0

// Package pty gives tests a terminal.
package pty

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is one with a program on it, and the output so far.
type Terminal struct {
	t       testing.TB
	master  *os.File
	slave   *os.File
	program *exec.Cmd
	ended   chan error
	more    chan struct{} // something was read
	read    chan struct{} // there is nothing more to read

	mu  sync.Mutex
	all strings.Builder
}

// Start runs a program on a terminal of a size, which it controls.
func Start(t testing.TB, program *exec.Cmd, columns, rows uint16) *Terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	program.Stdin, program.Stdout, program.Stderr = slave, slave, slave
	program.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	x := &Terminal{t: t, master: master, slave: slave, program: program, ended: make(chan error, 1), more: make(chan struct{}, 1), read: make(chan struct{})}
	go func() { x.ended <- program.Wait() }()
	go x.listen()
	t.Cleanup(func() {
		_ = program.Process.Kill()
		slave.Close()
		<-x.read
		master.Close()
	})
	return x
}

func (x *Terminal) listen() {
	defer close(x.read)
	buffer := make([]byte, 4096)
	for {
		n, err := x.master.Read(buffer)
		x.mu.Lock()
		x.all.Write(buffer[:n])
		x.mu.Unlock()
		select {
		case x.more <- struct{}{}:
		default: // one is told already
		}
		if err != nil {
			return
		}
	}
}

// Text is what the program has written so far.
func (x *Terminal) Text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.all.String()
}

// Until waits until something holds of what the program has written.
func (x *Terminal) Until(what string, holds func(text string) bool) {
	x.t.Helper()
	for limit := time.After(time.Minute); !holds(x.Text()); {
		select {
		case <-x.more:
		case <-limit:
			x.t.Fatalf("the terminal does not show %s: %q", what, x.Text())
		}
	}
}

// Type presses keys.
func (x *Terminal) Type(keys string) {
	x.t.Helper()
	if _, err := x.master.WriteString(keys); err != nil {
		x.t.Fatal(err)
	}
}

// Resize changes the terminal's size, and the program hears of it.
func (x *Terminal) Resize(columns, rows uint16) {
	x.t.Helper()
	if err := unix.IoctlSetWinsize(int(x.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err != nil {
		x.t.Fatal(err)
	}
}

// Signal sends the program one.
func (x *Terminal) Signal(s syscall.Signal) {
	x.t.Helper()
	if err := x.program.Process.Signal(s); err != nil {
		x.t.Fatal(err)
	}
}

// Modes are the terminal's settings.
func (x *Terminal) Modes() unix.Termios {
	x.t.Helper()
	modes, err := unix.IoctlGetTermios(int(x.slave.Fd()), unix.TCGETS)
	if err != nil {
		x.t.Fatal(err)
	}
	return *modes
}

// Ended waits for the program's end and returns its exit code.
func (x *Terminal) Ended() int {
	x.t.Helper()
	select {
	case err := <-x.ended:
		if _, exit := err.(*exec.ExitError); err != nil && !exit {
			x.t.Fatal(err)
		}
		return x.program.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		x.t.Fatalf("the program has not ended: %q", x.Text())
		return 0
	}
}
