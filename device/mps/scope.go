// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	systemd "github.com/coreos/go-systemd/v22/dbus"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
)

// A daemon begins in the control group of what started it, which under systemd is
// Nomad's service. There it would end with the service, and with it the CUDA context
// of every task on its GPU, although the tasks go on. So it is moved to a scope of
// its own, which ends when its last process does:
//
//	system.slice/nomad-gpu-mps-GPU-1a2b3c4d-5e6f-123456.scope
//
// The number is the daemon's start in ticks since boot: no two daemons share a name.

const scopePrefix = "nomad-gpu-mps-"

// scope names a systemd scope and the processes moved to it.
type scope struct {
	name, description string
	pids              []uint32
}

// separate moves a daemon or a gate, with its children and others, out of Nomad's
// service, unless that was done before. Without systemd there is no service to end.
func (c control) separate(ctx context.Context, p process, others ...process) error {
	if c.startScope == nil || strings.HasPrefix(unitOf(p.PID), scopePrefix) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	s := scope{
		name:        fmt.Sprintf("%s%s-%d.scope", scopePrefix, path.Base(c.dirs.base), p.Start),
		description: "CUDA MPS of " + c.uuid,
	}
	for _, other := range others {
		if other != (process{}) && !strings.HasPrefix(unitOf(other.PID), scopePrefix) {
			s.pids = append(s.pids, uint32(other.PID))
		}
	}
	for _, pid := range slices.Concat([]int{p.PID}, children(p.PID)) {
		s.pids = append(s.pids, uint32(pid))
	}
	if err := c.startScope(ctx, s); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	return nil
}

// unitOf is the last part of a process's control group as systemd keeps it, such as
// "nomad.service", or "" where there is none.
func unitOf(pid int) string {
	groups, err := cgroup.Of(pid)
	if err != nil {
		return ""
	}
	return unitIn(groups)
}

// unitIn finds the unit in systemd's hierarchy: the unified one, or on cgroup v1 the one
// that has its name.
func unitIn(groups []cgroup.Group) string {
	i := slices.IndexFunc(groups, func(g cgroup.Group) bool { return g.Has("name=systemd") })
	if i < 0 {
		i = slices.IndexFunc(groups, cgroup.Group.Unified)
	}
	if i < 0 {
		return ""
	}
	return strings.Trim(path.Base(groups[i].Path), "/.")
}

// systemdRunning reports whether systemd manages this machine, as sd_booted does.
func systemdRunning() bool {
	info, err := os.Lstat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// startSystemdScope asks systemd for a scope and waits until it has the processes.
func startSystemdScope(ctx context.Context, s scope) error {
	conn, err := systemd.NewWithContext(ctx)
	if err != nil {
		return fmt.Errorf("connect to systemd: %w", err)
	}
	defer conn.Close()
	finished := make(chan string, 1)
	if _, err := conn.StartTransientUnitContext(ctx, s.name, "fail", []systemd.Property{
		systemd.PropDescription(s.description),
		systemd.PropSlice("system.slice"),
		systemd.PropPids(s.pids...),
	}, finished); err != nil {
		return err
	}
	select {
	case result := <-finished:
		if result != "done" {
			return errors.New("systemd says " + result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
