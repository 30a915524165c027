// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

func TestProcessesAreToldApart(t *testing.T) {
	own, err := procs.Find(os.Getpid())
	if err != nil || own.PID != os.Getpid() || own.Start == 0 || !own.Alive() {
		t.Errorf("this process is %+v, %v", own, err)
	}
	if (process{PID: own.PID, Start: own.Start + 1}).Alive() {
		t.Error("a later process with the same number is taken for it")
	}
	// One that has ended and is not waited for is gone, whatever its name.
	dir := t.TempDir()
	odd := filepath.Join(dir, "a) Z (b")
	if err := os.WriteFile(odd, []byte("#!/bin/sh\nread -r line\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(odd)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	running, err := procs.Find(cmd.Process.Pid)
	if err != nil || !running.Alive() {
		t.Errorf("a process with an odd name is %+v, %v", running, err)
	}
	if !slices.Contains(children(os.Getpid()), cmd.Process.Pid) {
		t.Error("it is not among this process's children")
	}
	in.Close()
	for deadline := time.Now().Add(time.Minute); running.Alive(); {
		if time.Now().After(deadline) {
			t.Fatal("a zombie is taken for alive")
		}
	}
	if _, err := procs.Find(cmd.Process.Pid); !errors.Is(err, procs.ErrGone) {
		t.Errorf("a zombie: %v", err)
	}
	_ = cmd.Wait()
	if _, err := procs.Find(cmd.Process.Pid); !errors.Is(err, procs.ErrGone) {
		t.Errorf("one that is gone: %v", err)
	}
	if children(cmd.Process.Pid) != nil || arguments(cmd.Process.Pid) != nil {
		t.Error("one that is gone has children or arguments")
	}
}

// What a process is for a daemon is told by its directories and its arguments.
func TestRolesOfProcesses(t *testing.T) {
	t.Parallel() // it mostly waits
	dir := t.TempDir()
	d := dirsIn(dir, device)
	c := control{Control: mpsctl.Control{Program: "/opt/nvidia-cuda-mps-control", PipeDir: d.own}, dirs: d}
	own := "CUDA_MPS_PIPE_DIRECTORY=" + d.pipe
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		want role
	}{
		{"a daemon", []string{own}, []string{"nvidia-cuda-mps-control", "-d"}, roleDaemon},
		{"a daemon by its path, with options", []string{"A=1", own, "B=2"}, []string{"/usr/bin/nvidia-cuda-mps-control", "-S", "-d"}, roleDaemon},
		{"a question to it", []string{own}, []string{"nvidia-cuda-mps-control"}, roleNone},
		{"a daemon of another directory", []string{own + "2"}, []string{"nvidia-cuda-mps-control", "-d"}, roleNone},
		{"one whose variable ends so", []string{"X" + own}, []string{"nvidia-cuda-mps-control", "-d"}, roleNone},
		{"about to become one", []string{own}, []string{"plugin", ExecCommand, d.own, d.pipe}, roleDaemon},
		{"about to become another", []string{own}, []string{"plugin", ExecCommand, d.pipe, d.own}, roleNone},
		{"nothing yet", []string{own}, []string{"plugin", ExecCommand}, roleNone},
		{"a server", []string{own}, []string{"nvidia-cuda-mps-server"}, roleServer},
		{"a server by its path", []string{own}, []string{"/usr/sbin/nvidia-cuda-mps-server", "-multiuser-server"}, roleServer},
		{"a gate", []string{own}, []string{gateName, GateCommand, d.pipe, d.own}, roleGate},
		{"a gate that detaches", []string{own}, []string{"plugin", GateCommand, detach, d.pipe}, roleNone},
		{"another's gate", []string{own}, []string{gateName, GateCommand, d.own, d.pipe}, roleNone},
		{"a task of the host", []string{own}, []string{"python", "-d"}, roleNone},
		{"nothing in its environment", []string{"A=1"}, []string{"nvidia-cuda-mps-server"}, roleNone},
	} {
		cmd := exec.Command("/proc/self/exe") // the tests, which wait as they are told
		cmd.Args, cmd.Env = tc.args, append(tc.env, waitVariable)
		if got := c.roleWith(t, cmd); got != tc.want {
			t.Errorf("%s: role %d, not %d", tc.name, got, tc.want)
		}
	}
	if c.roleOf(1<<22+1) != roleNone {
		t.Error("no process has a role")
	}
}

// roleWith starts a program that stays until it is told to end, and returns its role.
func (c control) roleWith(t *testing.T, cmd *exec.Cmd) role {
	t.Helper()
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
	defer func() { in.Close(); _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	found := c.running(roleDaemon, roleServer, roleGate)
	got := c.roleOf(cmd.Process.Pid)
	if listed := slices.ContainsFunc(found, func(p process) bool { return p.PID == cmd.Process.Pid }); listed != (got != roleNone) {
		t.Errorf("%q has role %d and is among the running: %t", cmd.Args, got, listed)
	}
	if multi := multiUserServer(cmd.Process.Pid); multi != slices.Contains(cmd.Args, "-multiuser-server") {
		t.Errorf("%q takes all users: %t", cmd.Args, multi)
	}
	if static := staticDaemon(cmd.Process.Pid); static != slices.Contains(cmd.Args, "-S") {
		t.Errorf("%q has partitions: %t", cmd.Args, static)
	}
	return got
}

func TestLastMatchOfALog(t *testing.T) {
	d := dirsIn(t.TempDir(), device)
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	failed := regexp.MustCompile("fail(ed)")
	if match := d.lastMatch(serverLog, 0, failed); match != nil {
		t.Errorf("a log that is not there says %q", match)
	}
	text := "[2026-11-22 09:00:00.000 Server 77] failed first\n  failed [then] Device X \n[2026-11-22 09:00:01.000 Server 77] all is well\n"
	if err := os.WriteFile(filepath.Join(d.log, "server.log"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if match := d.lastMatch(serverLog, 0, failed); match == nil || withoutTime(match[len(match)-1]) != "failed [then] Device X" {
		t.Errorf("the last notice is %q", match)
	}
	if match := d.lastMatch(serverLog, int64(len(text)), failed); match != nil {
		t.Errorf("after all of it: %q", match)
	}
	if d.lastMatch(serverLog, int64(len(text))+1, failed) == nil {
		t.Error("a log that was truncated meanwhile is not looked through")
	}
	// Only the end of a long log is looked through.
	long := text + strings.Repeat("x\n", logTail/2)
	if err := os.WriteFile(filepath.Join(d.log, "server.log"), []byte(long), 0o644); err != nil {
		t.Fatal(err)
	}
	if match := d.lastMatch(serverLog, 0, failed); match != nil {
		t.Errorf("of a long log: %q", match)
	}
}

func TestLogsAreTruncatedAboveTheirBound(t *testing.T) {
	d := dirsIn(t.TempDir(), device)
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int{"control.log": maxLog, "server.log": maxLog + 1, gateLog: 2 * maxLog}
	for name, size := range sizes {
		text := strings.Repeat("x", size-len("the end")) + "the end"
		if err := os.WriteFile(filepath.Join(d.log, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.boundLogs(); err != nil {
		t.Fatal(err)
	}
	for name, size := range sizes {
		info, err := os.Stat(filepath.Join(d.log, name))
		kept, keptErr := os.ReadFile(filepath.Join(d.log, name+".1"))
		if size == maxLog {
			if err != nil || info.Size() != maxLog || keptErr == nil {
				t.Errorf("%s of %d bytes is truncated", name, size)
			}
			continue
		}
		if err != nil || info.Size() != 0 || keptErr != nil || len(kept) != logTail || !strings.HasSuffix(string(kept), "xthe end") {
			t.Errorf("%s has %v, %v, and %d bytes are kept, %v", name, info, err, len(kept), keptErr)
		}
	}
	// What is not a file is left alone: a task of the host may have put it there.
	for name := range sizes {
		if err := os.Remove(filepath.Join(d.log, name)); err != nil {
			t.Fatal(err)
		}
	}
	victim := filepath.Join(d.base, "victim")
	if err := os.WriteFile(victim, make([]byte, 2*maxLog), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(d.log, "server.log")); err != nil {
		t.Fatal(err)
	}
	if err := d.boundLogs(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(victim); err != nil || info.Size() != 2*maxLog {
		t.Errorf("what a link leads to was truncated to %v", strconv.FormatInt(info.Size(), 10))
	}
}

// A server's program lies beside the daemon's, or in sbin, and loads libraries.
func TestEnvironmentOfADaemon(t *testing.T) {
	t.Setenv("PATH", "/bin")
	for _, tc := range []struct{ program, libraries, want string }{
		{"nvidia-cuda-mps-control", "", ""},
		{"nvidia-cuda-mps-control", "/lib/a:/lib/b", "LD_LIBRARY_PATH=/lib/a:/lib/b"},
		{"/opt/bin/nvidia-cuda-mps-control", "", "PATH=/bin:/opt/bin:/opt/sbin"},
		{"/opt/bin/nvidia-cuda-mps-control", "/lib/a", "PATH=/bin:/opt/bin:/opt/sbin LD_LIBRARY_PATH=/lib/a"},
	} {
		c := control{Control: mpsctl.Control{Program: tc.program}, libraryPath: tc.libraries}
		if got := strings.Join(c.driverEnv(), " "); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}
