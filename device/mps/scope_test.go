// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

func TestUnitOfAProcess(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/nomad.service\n":                                             "nomad.service",
		"0::/system.slice/nomad-gpu-mps-GPU-11111111-2222-77.scope\n":                  "nomad-gpu-mps-GPU-11111111-2222-77.scope",
		"3:pids:/x\n1:name=systemd:/system.slice/nomad.service\n0::/elsewhere.scope\n": "nomad.service",
		"12:cpu,cpuacct:/\n0::/\n":                                                     "",
		"":                                                                             "",
		"0::/system.slice/with:colons:name=systemd.service\n":                          "with:colons:name=systemd.service",
		"3:cpu:/own/0::/other.service\n0::/system.slice/nomad.service\n":               "nomad.service",
		"3:cpu:/own:name=systemd:/other.service\n1:name=systemd:/system.slice/nomad.service\n": "nomad.service",
	} {
		if got := unitIn(cgroup.Parse(text)); got != want {
			t.Errorf("a process of %q: unit %q, want %q", text, got, want)
		}
	}
}

// A daemon in Nomad's service ends with it; so does one that an earlier release left
// there, unless it is moved when it is adopted.
func TestADaemonIsMovedToAScopeWhenItIsStartedAndWhenItIsAdopted(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{b.spec()})
	started := b.until("ready", ready)
	b.Close()

	asked := make(chan scope, 8)
	b.startScope = func(_ context.Context, s scope) error { asked <- s; return nil }
	b.start()
	b.Want([]Spec{b.spec()})
	if adopted := b.until("adopted", ready); adopted.PID != started.PID {
		t.Fatalf("the daemon was %d, now it is %d", started.PID, adopted.PID)
	}
	checkScope(t, asked, started.PID)

	if err := unix.Kill(started.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	restarted := b.until("another one is ready", func(s Status) bool { return s.Ready && s.PID != started.PID })
	checkScope(t, asked, restarted.PID)
}

// checkScope waits for the scope of a daemon; gates have theirs.
func checkScope(t *testing.T, asked <-chan scope, pid int) {
	t.Helper()
	p, err := procs.Find(pid)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("nomad-gpu-mps-%s-%d.scope", device[:shortUUID], p.Start)
	s := <-asked
	for s.name != want {
		t.Logf("there is scope %+v", s)
		s = <-asked
	}
	if len(s.pids) < 2 {
		t.Errorf("the scope is %+v, without the gate", s)
	}
	if !slices.Contains(s.pids, uint32(pid)) || !strings.Contains(s.description, device) {
		t.Errorf("the scope is %+v, want process %d of %s in it", s, pid, device)
	}
}

func TestADaemonWithoutAScopeServesAllTheSame(t *testing.T) {
	b := newBench(t)
	b.Want([]Spec{b.spec()})
	b.until("ready", ready)
	b.Close()
	b.startScope = func(context.Context, scope) error { return errors.New("no bus") }
	b.start()
	b.Want([]Spec{b.spec()})
	b.until("ready without a scope", ready)
}
