// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
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

// Guest is such a task on a device: its control group and its part.
type Guest struct {
	Group  string
	Device gpu.ReservedDevice
	// LimitMilli is the limit of compute that its job asks for, 0 for none.
	LimitMilli int64
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

// Find returns a process's task by the process's control group.
func (t *Tenants) Find(uuid, group string) (Guest, error) {
	scope := TaskGroup(group)
	if scope == "" {
		return Guest{}, fmt.Errorf("control group %s is of no task", group)
	}
	all := t.processes
	if all == nil {
		all = processes
	}
	found, running, limit := map[string]gpu.ReservedDevice{}, map[string]bool{}, ""
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range all() {
		for claimed, by := range t.claims {
			running[claimed] = running[claimed] || cgroup.Within(p.Groups, by)
		}
		if !cgroup.Within(p.Groups, scope) {
			continue
		}
		env := p.Env()
		for key, d := range t.reservations(env, uuid) {
			if len(found) == 0 {
				limit = valueOf(env, limitKey)
			}
			found[key] = d
		}
	}
	if len(found) != 1 {
		return Guest{}, fmt.Errorf("control group %s has %d reservations of GPU %s, not one", scope, len(found), uuid)
	}
	for key, d := range found {
		if by, claimed := t.claims[key]; claimed && by != scope && running[key] {
			return Guest{}, fmt.Errorf("the reservation of control group %s is another task's, whose control group is %s", scope, by)
		}
		if t.claims == nil {
			t.claims = map[string]string{}
		}
		t.claims[key] = scope
		if d.Whole() {
			return Guest{}, errors.New("the task has the whole GPU, and runs without MPS")
		}
		milli, err := limitOf(d, limit)
		return Guest{scope, d, milli}, err
	}
	return Guest{}, nil
}

// limitKey is how Nomad tells a task of any driver its job's meta gpu_limit.
const limitKey = "NOMAD_META_gpu_limit"

// limitOf reads the limit that a job's author wrote. A program that claims another limit
// gets no more than its author can ask for.
func limitOf(d gpu.ReservedDevice, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	limit, err := gpu.ParseMilli(text)
	switch {
	case err != nil:
		return 0, fmt.Errorf("meta gpu_limit: %w", err)
	case limit < d.Milli:
		return 0, fmt.Errorf("meta gpu_limit: %q is below the guarantee, %d; write at least %d", text, d.Milli, d.Milli)
	case d.BurstMilli > 0 && limit > d.BurstMilli:
		return 0, fmt.Errorf("meta gpu_limit: %q is above %d, the most that this node's operator allows on GPU %s", text, d.BurstMilli, d.UUID)
	}
	return limit, nil
}

// Variables are those of a process's environment, in its order.
func Variables(environ []byte) iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if key, value, _ := strings.Cut(string(entry), "="); !yield(key, value) {
				return
			}
		}
	}
}

// valueOf is a variable's value in an environment, "" where it has none.
func valueOf(env []byte, name string) string {
	for key, value := range Variables(env) {
		if key == name {
			return value
		}
	}
	return ""
}

// reservations are those of a device in an environment that such a task may have.
func (t *Tenants) reservations(env []byte, uuid string) map[string]gpu.ReservedDevice {
	all := map[string]gpu.ReservedDevice{}
	for key, value := range Variables(env) {
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
