// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// stubborn is a host on which CUDA suspends nothing.
type stubborn struct{ told, lost []string }

func (h *stubborn) Checkpoint(_ context.Context, r gpu.CheckpointRequest) (gpu.CheckpointAnswer, error) {
	a := gpu.CheckpointAnswer{Processes: []gpu.CheckpointProcess{{PID: 1, State: gpu.ProcessRunning}}}
	if r.Action == gpu.CheckpointSuspend {
		a.Failure, a.Message = gpu.FailureUnsupported, "managed memory"
	}
	return a, nil
}

func (h *stubborn) Processes(string) ([]int, error)    { return []int{1}, nil }
func (h *stubborn) MemoryLimit(string) (int64, error)  { return 0, nil }
func (h *stubborn) SetMemoryLimit(string, int64) error { return nil }
func (h *stubborn) Save(gpu.Seats) error               { return nil }
func (h *stubborn) Lost(leaseID, reason string)        { h.lost = append(h.lost, leaseID+": "+reason) }
func (h *stubborn) Tell(leaseID, message string)       { h.told = append(h.told, leaseID+": "+message) }

// A task that CUDA cannot suspend keeps the device and is told so, or is ended with the
// reason, as the operator says.
func TestATaskThatCannotBeSuspended(t *testing.T) {
	for name, refuse := range map[string]bool{"keep": false, "refuse": true} {
		t.Run(name, func(t *testing.T) {
			host, now := &stubborn{}, start
			c := &Controller{UUID: "gpu", Host: host, Now: func() time.Time { return now }, Patience: Patience}
			r := rules
			r.RefuseFixed = refuse
			d := Device{CapacityMiB: 80 << 10, Rules: r, Tasks: []Task{
				{LeaseID: "fixed", StartedAt: start, Starting: true, Priority: 50, DeclaredMiB: 60 << 10}}}
			step := func() {
				t.Helper()
				now = now.Add(time.Second)
				d.MeasuredAt = now
				if _, err := c.Step(t.Context(), d); err != nil {
					t.Fatal(err)
				}
			}
			step()
			d.Tasks[0] = Task{LeaseID: "fixed", StartedAt: start, Priority: 50, DeclaredMiB: 60 << 10, Measured: true, MeasuredMiB: 60 << 10, Milli: 100}
			step()
			d.Tasks = append(d.Tasks, Task{LeaseID: "other", StartedAt: start, Starting: true, Priority: 60, DeclaredMiB: 60 << 10})
			for range 5 {
				step()
			}
			states := map[string]gpu.SeatState{}
			for _, s := range c.Seats() {
				states[s.LeaseID] = s.State
			}
			says := func(all []string, what string) bool {
				return slices.ContainsFunc(all, func(line string) bool { return strings.HasPrefix(line, "fixed: ") && strings.Contains(line, what) })
			}
			if refuse {
				if len(host.lost) != 1 || !says(host.lost, `it cannot be suspended (managed memory), and this node's operator refuses such tasks (suspend { unsuspendable = "refuse" })`) {
					t.Errorf("lost is %q", host.lost)
				}
				d.Tasks = d.Tasks[1:] // the task has ended
				step()
				if s := c.Seats(); len(s) != 1 || s[0].State != gpu.SeatResident {
					t.Errorf("then the seats are %+v", s)
				}
				return
			}
			if len(host.lost) != 0 || !says(host.told, "cannot be suspended, and keeps the GPU: managed memory") || states["fixed"] != gpu.SeatResident || states["other"] != gpu.SeatWaiting {
				t.Errorf("told is %q, lost %q, the seats are %v", host.told, host.lost, states)
			}
		})
	}
}

// moving is a host on which CUDA suspends and brings back whatever it is asked to. news is a
// program that a suspended task has started since.
type moving struct {
	stubborn
	away, news bool
	limits     []int64
}

func (h *moving) Checkpoint(_ context.Context, r gpu.CheckpointRequest) (gpu.CheckpointAnswer, error) {
	a := gpu.CheckpointAnswer{Processes: []gpu.CheckpointProcess{{PID: 1, State: gpu.ProcessRunning}}}
	switch {
	case r.Action == gpu.CheckpointSuspend && !h.away:
		h.away, a.HeldMiB = true, 60<<10
	case r.Action == gpu.CheckpointSuspend:
		h.news, a.HeldMiB = false, 1<<10
	}
	if h.away {
		a.Processes[0].State = gpu.ProcessCheckpointed
	}
	if h.news {
		a.Processes = append(a.Processes, gpu.CheckpointProcess{PID: 2, State: gpu.ProcessRunning})
	}
	return a, nil
}

func (h *moving) MemoryLimit(string) (int64, error) { return 1 << 30, nil }
func (h *moving) SetMemoryLimit(leaseID string, limit int64) error {
	if leaseID == "first" {
		h.limits = append(h.limits, limit>>20)
	}
	return nil
}

// What a task has on the host is there still when another of its programs is suspended beside
// it, however much the tasks on the device leave: its limit is not lowered below it.
func TestMemoryOnTheHostIsNotForgotten(t *testing.T) {
	host, now := &moving{}, start
	c := &Controller{UUID: "gpu", Host: host, Now: func() time.Time { return now }, Patience: Patience}
	d := Device{CapacityMiB: 80 << 10, Rules: rules}
	d.Rules.HostMiB = 200 << 10
	first := Task{LeaseID: "first", StartedAt: start, Priority: 50, DeclaredMiB: 60 << 10}
	second := Task{LeaseID: "second", StartedAt: start, Priority: 60, DeclaredMiB: 60 << 10, Starting: true}
	step := func(used int64, tasks ...Task) gpu.Seat {
		t.Helper()
		now = now.Add(time.Minute)
		d.MeasuredAt, d.Tasks, d.UsedMiB = now, tasks, used
		if _, err := c.Step(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		return *c.seat("first")
	}
	first.Starting = true
	step(0, first)
	first.Starting, first.Measured, first.MeasuredMiB, first.Milli = false, true, 60<<10, 100
	step(60<<10, first)
	for range 5 {
		step(60<<10, first, second)
	}
	if s := *c.seat("first"); s.State != gpu.SeatSuspended || s.MemoryMiB != 60<<10 {
		t.Fatalf("the first is %+v", s)
	}
	second.Starting = false
	host.news, first.MeasuredMiB = true, 1<<10
	step(61<<10, first, second)
	first.MeasuredMiB = 0
	s := step(60<<10, first, second)
	if last := host.limits[len(host.limits)-1]; host.news || s.State != gpu.SeatSuspended || s.MemoryMiB < 60<<10 || last < 61<<10 {
		t.Errorf("the first is %+v, its limit was raised and lowered so: %v MiB", s, host.limits)
	}
}
