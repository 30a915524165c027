// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/procs"
)

// Tenants finds out which task of another driver a process is of: by the control group that
// the driver gave the task, and by the reservation with which its processes were started. A
// program can claim another reservation, but none that Reserve has not given out, none of
// the containerd driver's, and none that another control group has claimed.
type Tenants struct {
	// Knows reports whether a reservation may be such a task's.
	Knows func(gpu.Reservation) bool
	// processes are all, for a test another list.
	processes func() []Member

	mu sync.Mutex
	// claims are the control groups of the reservations that were claimed.
	claims map[string]string
}

// Member is a process with its control groups and the environment it was started with.
type Member struct {
	Groups []cgroup.Group
	Env    func() []byte
}

// taskGroup is what drivers call a task's control group: Nomad's by allocation and task,
// the engines' by container.
var taskGroup = regexp.MustCompile(`^(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\..+|(?:docker-|libpod-)?[0-9a-f]{64}(?:\.scope)?)$`)

// TaskGroup is the control group of the task that a control group is of, "" where it is of
// none.
func TaskGroup(group string) string {
	parts := strings.Split(group, "/")
	for i, part := range parts {
		if taskGroup.MatchString(part) {
			return strings.Join(parts[:i+1], "/")
		}
	}
	return ""
}

// Find returns the control group of a process's task, and its part of a device.
func (t *Tenants) Find(uuid, group string) (string, gpu.ReservedDevice, error) {
	scope := TaskGroup(group)
	if scope == "" {
		return "", gpu.ReservedDevice{}, fmt.Errorf("control group %s is of no task", group)
	}
	all := t.processes
	if all == nil {
		all = processes
	}
	found, device := map[string]bool{}, gpu.ReservedDevice{}
	running := map[string]bool{}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range all() {
		for claimed, by := range t.claims {
			running[claimed] = running[claimed] || cgroup.Within(p.Groups, by)
		}
		if !cgroup.Within(p.Groups, scope) {
			continue
		}
		for key, d := range t.reservations(p.Env(), uuid) {
			found[key], device = true, d
		}
	}
	if len(found) != 1 {
		return "", device, fmt.Errorf("control group %s has %d reservations of GPU %s, not one", scope, len(found), uuid)
	}
	for key := range found {
		if by, claimed := t.claims[key]; claimed && by != scope && running[key] {
			return "", device, fmt.Errorf("the reservation of control group %s is another task's, whose control group is %s", scope, by)
		}
		if t.claims == nil {
			t.claims = map[string]string{}
		}
		t.claims[key] = scope
	}
	if device.Whole() {
		return "", device, errors.New("the task has the whole GPU, and runs without MPS")
	}
	return scope, device, nil
}

// reservations are those of a device in an environment that such a task may have.
func (t *Tenants) reservations(env []byte, uuid string) map[string]gpu.ReservedDevice {
	all := map[string]gpu.ReservedDevice{}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		key, value, _ := strings.Cut(string(entry), "=")
		if !gpu.IsReservationKey(key) {
			continue
		}
		found, err := gpu.ReservationsFromEnv(map[string]string{key: value})
		if err != nil || len(found) != 1 || !t.Knows(found[0]) {
			continue
		}
		for _, d := range found[0].Devices {
			if d.UUID == uuid {
				all[key+"="+value] = d
			}
		}
	}
	return all
}

// processes are all that run.
func processes() (all []Member) {
	pids, err := procs.PIDs()
	if err != nil {
		return nil
	}
	for _, pid := range pids {
		groups, err := cgroup.Of(pid)
		if err == nil {
			all = append(all, Member{groups, func() []byte { return Environ(pid) }})
		}
	}
	return all
}
