// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/mpswire"
)

// connectCommand runs the test binary as a CUDA program that does not get further
// than its server: args are the socket and how long it stays there.
const connectCommand = "connect"

func connect(args []string) {
	stay, err := time.ParseDuration(args[1])
	if err == nil {
		err = becomeClient(args[0])
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("passed")
	time.Sleep(stay)
	os.Exit(0)
}

// become connects as a kind of program, as far as the kind.
func become(socket string, kind mpswire.Kind) (mpswire.Conn, error) {
	c, err := mpswire.Dial(socket)
	if err != nil {
		return c, err
	}
	if err := errors.Join(c.SetDeadline(time.Now().Add(time.Minute)), c.ExpectHello()); err != nil {
		return c, errors.Join(err, c.Close())
	}
	me := unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())}
	if err := c.Introduce(me, kind); err != nil {
		return c, errors.Join(err, c.Close())
	}
	return c, nil
}

// becomeClient does what libcuda does: it looks whether there is a daemon, then it
// gets a connection to the server, and tells its status.
func becomeClient(socket string) error {
	look, err := mpswire.Dial(socket)
	if err != nil {
		return err
	}
	if err := errors.Join(look.ExpectHello(), look.Close()); err != nil {
		return err
	}
	c, err := become(socket, mpswire.KindClient)
	if err != nil {
		return err
	}
	defer c.Close()
	server, err := c.ReceiveFile()
	if err != nil {
		return err
	}
	kind, err := unix.GetsockoptInt(server, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_SEQPACKET {
		return fmt.Errorf("the server is reached by %d, %w", kind, err)
	}
	return errors.Join(c.Send32(0), unix.Close(server))
}

func gateOf(s Status) string { return filepath.Join(s.PipeDir, "control") }

// clientProgram starts a CUDA program as a user, and returns when it has passed the gate.
func (b *bench) clientProgram(socket string, user uint32, stay time.Duration) (*exec.Cmd, error) {
	b.t.Helper()
	if err := os.Chmod(b.dir, 0o711); err != nil {
		b.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", connectCommand, socket, stay.String())
	if user != 0 {
		// The binary lies where another user may not reach it.
		copied := filepath.Join(b.dir, "program")
		if err := exec.Command("cp", self, copied).Run(); err != nil {
			b.t.Fatal(err)
		}
		cmd.Path, cmd.Args[0] = copied, copied
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	line := make([]byte, 256)
	n, _ := out.Read(line)
	if text := strings.TrimSpace(string(line[:n])); text != "passed" {
		return cmd, errors.New(text)
	}
	return cmd, nil
}

// untilLogged waits for a line of a log, which originals write when they have time.
func (b *bench) untilLogged(s Status, name, want string) {
	b.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		text, err := os.ReadFile(filepath.Join(s.LogDir, name))
		if err == nil && strings.Contains(string(text), want) {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s has no %q: %s (%v)", name, want, text, err)
		}
	}
}

func (b *bench) untilPasses(socket string) {
	b.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		err := becomeClient(socket)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatal(err)
		}
	}
}
