// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// daemon starts an MPS control daemon for a GPU, ready with its limits.
func daemon(t *testing.T, uuid string) mps.Status {
	t.Helper()
	return supervised(t, uuid).status
}

// supervisedDaemon is a daemon with what changes its limits and asks it.
type supervisedDaemon struct {
	*mps.Supervisor
	protocol mps.Protocol
	status   mps.Status
	control  mpsctl.Control
	changed  chan struct{}
	// dir has all that belongs to the daemon and its gate, logs too.
	dir string
	// read is how much of each log was told.
	read map[string]int
}

// daemonsDir has the directories of the bundle's daemons, one below another's name, so
// that what an earlier run left is found.
func daemonsDir() string { return filepath.Join(os.TempDir(), "nomad-gpu-bundle") }

// endLeftovers ends the daemons that a bundle left which was killed. Its clients end by
// themselves: their input is closed.
func endLeftovers() error {
	left, err := filepath.Glob(filepath.Join(daemonsDir(), "*"))
	if err != nil {
		return err
	}
	for _, dir := range left {
		fmt.Println("ending the MPS daemon that an earlier run left in", dir)
		s, err := mps.New(mps.Options{Logger: hclog.NewNullLogger(), StateDir: dir, Program: driver().Program("nvidia-cuda-mps-control"), Self: self, ShmMiB: 1024})
		if err != nil {
			return err
		}
		s.Want(nil)
		s.Close()
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// spec is of protocol 2 where nothing else is said: under 3 programs of no task are refused.
func spec(uuid string, mib int64, protocol mps.Protocol) mps.Spec {
	return mps.Spec{UUID: uuid, MemoryMiB: mib, Percent: 100, MaxClients: 48, Protocol: protocol, ProtocolReason: "the test says so"}
}

func supervised(t *testing.T, uuid string) *supervisedDaemon {
	t.Helper()
	return supervisedWith(t, uuid, mps.ProtocolV2)
}

func supervisedWith(t *testing.T, uuid string, protocol mps.Protocol) *supervisedDaemon {
	t.Helper()
	if os.Getuid() != 0 {
		unavailable(t, "MPS with a /dev/shm of its own needs root")
	}
	program, err := exec.LookPath(driver().Program("nvidia-cuda-mps-control"))
	if err != nil {
		unavailable(t, "the driver's MPS is not installed: %v", err)
	}
	if err := os.MkdirAll(daemonsDir(), 0o711); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(daemonsDir(), "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	changed := make(chan struct{}, 1)
	s, err := mps.New(mps.Options{Logger: hclog.NewNullLogger(), StateDir: dir, Program: program, LibraryPath: libraryPath(), Self: self, MultiUser: true, ShmMiB: 1024,
		Changed: func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Want(nil)
		s.Close()
	})
	d := &supervisedDaemon{Supervisor: s, protocol: protocol, changed: changed, dir: dir, read: map[string]int{}}
	d.limit(t, uuid, 8192)
	d.control = mpsctl.Control{Program: program, PipeDir: d.status.ControlDir, Timeout: 10 * time.Second}
	return d
}

// limit sets what any client may have, and returns when the daemon has confirmed it.
func (d *supervisedDaemon) limit(t *testing.T, uuid string, mib int64) {
	t.Helper()
	d.Want([]mps.Spec{spec(uuid, mib, d.protocol)})
	limit := time.After(time.Minute)
	for {
		if d.status = d.Status(uuid); d.status.Ready {
			return
		}
		select {
		case <-d.changed:
		case <-limit:
			t.Fatalf("the MPS control daemon does not become ready: %s", d.status.Reason)
		}
	}
}

// client is a CUDA program under MPS, as a container would run it: with the
// daemon's shared memory as its own.
type client struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	// spared is true while a kill could hang the machine: see release.
	spared *atomic.Bool
}

func start(t *testing.T, uuid string, s mps.Status, limits []string, args ...string) *client {
	t.Helper()
	return startAs(t, uuid, s, nil, limits, args...)
}

// startAs starts it as another user; nil is this one.
func startAs(t *testing.T, uuid string, s mps.Status, user *syscall.Credential, limits []string, args ...string) *client {
	t.Helper()
	return startIn(t, uuid, s, 0, user, limits, args...)
}

// startIn starts it in namespaces of its own as well.
func startIn(t *testing.T, uuid string, s mps.Status, namespaces uintptr, user *syscall.Credential, limits []string, args ...string) *client {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append([]string{executable, workCommand}, args...)
	attr := &syscall.SysProcAttr{Cloneflags: namespaces}
	if s.ShmDir != "" {
		argv = append([]string{executable, mps.ExecCommand, s.ShmDir, "/dev/shm", "--"}, argv...)
		attr.Unshareflags = syscall.CLONE_NEWNS
	}
	if user != nil { // after the mount of /dev/shm, which is root's to make
		argv = slices.Insert(argv, slices.Index(argv, "--")+1, "/usr/bin/setpriv", "--reuid", fmt.Sprint(user.Uid), "--regid", fmt.Sprint(user.Gid), "--clear-groups")
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "CUDA_VISIBLE_DEVICES=" + uuid, "CUDA_CACHE_DISABLE=1", "LD_LIBRARY_PATH=" + libraryPath()}
	if s.PipeDir == "" {
		s.PipeDir, s.LogDir = "/nonexistent", "/nonexistent"
	}
	if namespaces != 0 {
		env = append(env, ownProc+"=1")
	}
	env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+s.PipeDir, "CUDA_MPS_LOG_DIRECTORY="+s.LogDir)
	return launch(t, argv, append(env, limits...), attr)
}

// libraryPath is how clients find the driver.
func libraryPath() string {
	return strings.Trim(driver().LibraryPath()+":"+os.Getenv("LD_LIBRARY_PATH"), ":")
}

func launch(t *testing.T, argv, env []string, attr *syscall.SysProcAttr) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr, cmd.Env = attr, env
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &client{cmd, in, bufio.NewScanner(out), &atomic.Bool{}}
	cmd.Cancel = func() error {
		if c.spared.Load() {
			return os.ErrProcessDone
		}
		return cmd.Process.Kill()
	}
	t.Cleanup(func() {
		in.Close()
		cancel()
		if !c.spared.Load() {
			_ = cmd.Wait() // it may have been waited for
		}
	})
	return c
}

func limitTo(mib int) []string {
	return []string{fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", mib)}
}

// line is the next line that the program prints.
func (c *client) line(t *testing.T) string {
	t.Helper()
	if !c.lines.Scan() {
		t.Fatalf("the program ended early: %v", c.cmd.Wait())
	}
	return c.lines.Text()
}

func (c *client) rate(t *testing.T) float64 {
	t.Helper()
	var rate float64
	if line := c.line(t); !scan(line, "rate %f", &rate) {
		t.Fatalf("the program says %q", line)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return rate
}

func scan(line, format string, target any) bool {
	n, err := fmt.Sscanf(line, format, target)
	return n == 1 && err == nil
}

// outcome is all that it still says, and how it ends.
func (c *client) outcome() string {
	var said []string
	for c.lines.Scan() {
		said = append(said, c.lines.Text())
	}
	state := "it ends well"
	if err := c.cmd.Wait(); err != nil {
		state = err.Error()
	}
	return strings.Join(append(said, state), "; ")
}

// started waits until its kernel is about to run.
func (c *client) started(t *testing.T) *client {
	t.Helper()
	if line := c.line(t); line != "started" {
		t.Fatalf("the program says %q", line)
	}
	return c
}

// held is what a program that holds memory has, and what it sees of the GPU.
func (c *client) held(t *testing.T) (holds, free, total int) {
	t.Helper()
	line := c.line(t)
	if n, err := fmt.Sscanf(line, "holds %d free %d total %d", &holds, &free, &total); n != 3 || err != nil {
		t.Fatalf("the program says %q", line)
	}
	return holds, free, total
}
