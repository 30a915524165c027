// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// sitter shows a job that has a seat on a GPU of a machine.
func sitter(t *testing.T, s *servicetest.Service, id string, priority, index, seat int) admit.Ask {
	t.Helper()
	a := servicetest.Ask(id, "1", 1)
	a.Priority, a.Sharing = priority, gpu.SharingSuspend
	s.Submit(t, a)
	s.Register(a)
	s.Run(a, "alloc-"+id, "a", index, seat, 1)
	return a
}

// A job that finds no room takes a free seat rather than have work evicted, where a seat
// serves it and those that sit there step aside for it; who is evicted otherwise, and why, is
// said.
func TestASeatIsTakenRatherThanEvictFor(t *testing.T) {
	const noPlace = "no seat is free beside tasks that would step aside for it"
	for name, row := range map[string]struct {
		config   string
		highest  int // that nodes allow
		notebook int // the priority of what sits there
		change   func(a *admit.Ask)
		request  string
		seat     bool
		why      string // why not
	}{
		"a lower one steps aside":                {highest: 90, notebook: 20, request: "1", seat: true},
		"for GPU memory too":                     {highest: 90, notebook: 20, request: "8G", seat: true},
		"for a model that it is":                 {highest: 90, notebook: 20, request: "1(T4)", seat: true},
		"an equal one does not":                  {highest: 90, notebook: 60, request: "1", why: noPlace},
		"nor where nodes do not tell them apart": {highest: 20, notebook: 20, request: "1", why: noPlace},
		"the operator wants evictions":           {config: "preemption {\n min_run_time = \"0s\"\n prefer = \"evict\"\n}", highest: 90, notebook: 20, request: "1", why: `it takes no seat, since preemption.prefer is "evict"`},
		"a share of compute is no seat":          {highest: 90, notebook: 20, request: "0.9", why: `no seat serves it: gpu = "0.9": a seat promises no share of compute`},
		"with memory neither":                    {highest: 90, notebook: 20, request: "8G,0.9", why: "a seat promises no share of compute"},
		"another driver cannot suspend":          {highest: 90, notebook: 20, request: "1", change: func(a *admit.Ask) { a.Tasks[0].Driver = "docker" }, why: `a task with a seat runs with driver "containerd", not "docker"`},
		"a job may want a GPU of its own":        {highest: 90, notebook: 20, request: "1", change: func(a *admit.Ask) { a.Sharing = gpu.SharingMPS }, why: `it asks for gpu_sharing = "mps"`},
		"what its queue borrows does not push":   {config: servicetest.Quick + "queue \"q\" {\n gpus = 0.1\n namespaces = [\"default\"]\n}\n", highest: 90, notebook: 20, request: "1", why: noPlace},
		"and what it owns does":                  {config: servicetest.Quick + "queue \"q\" {\n gpus = 8\n namespaces = [\"default\"]\n}\n", highest: 90, notebook: 20, request: "1", seat: true},
	} {
		t.Run(name, func(t *testing.T) {
			config := row.config
			if config == "" {
				config = servicetest.Quick
			}
			s := servicetest.New(t, config, servicetest.SeatMachine("a", 1, 1, row.highest))
			s.Tenant(t, "low", 10, "a", 0, 0, 16)
			sitter(t, s, "notebook", row.notebook, 1, 0)
			a := servicetest.Ask("high", row.request, 1)
			a.Priority = 60
			if row.change != nil {
				row.change(&a)
			}
			s.Submit(t, a)
			s.Register(a)
			s.Block(a, 1)
			s.Pass(servicetest.Settled)
			due := s.Next(nil, true)
			switch {
			case due == nil:
				t.Fatal("nothing is done")
			case !row.seat:
				if due.Seat != nil || due.Evict == nil || len(due.Evict.Victims) != 1 || due.Evict.Victims[0].AllocID != "alloc-low" || !strings.Contains(due.Evict.Text, row.why) {
					t.Fatalf("got a seat %+v, evictions %+v", due.Seat, due.Evict)
				}
				return
			case due.Seat == nil || due.Evict != nil || len(due.Seat.Aside) != 1 || due.Seat.Aside[0].AllocID != "alloc-notebook":
				t.Fatalf("got a seat %+v, evictions %+v", due.Seat, due.Evict)
			}
			if text := due.Seat.Aside[0].Text; !strings.Contains(text, "default/notebook (seat priority 20, alloc alloc-no) steps aside on node a: job default/high takes a free seat of priority 60") {
				t.Errorf("it says %q", text)
			}
			s.Assume(due.Seat.Promise)
			d, err := s.Revise(t.Context(), []admit.Ask{a}, due.Revision)
			if err != nil || d == nil {
				t.Fatalf("revised to %+v, %v", d, err)
			}
			task := d[0].Tasks[0]
			sharing := admit.Constraint{LTarget: "${device.attr.sharing}", RTarget: "suspend", Operand: "="}
			if len(task.Devices) != 1 || task.Devices[0].Name != "nvidia/shared" || task.Devices[0].Count != 1 || task.Devices[0].Prefer != "T4/1" || !slices.Contains(task.Devices[0].Constraints, sharing) || task.SeatPriority != 60 || task.Share.MemoryMiB != a.Tasks[0].Request.MemoryMiB {
				t.Errorf("it is registered with %+v", task)
			}
			for _, shown := range s.Cluster(t).Decisions {
				if shown.JobID == "high" && shown.Outcome == view.Placed && !strings.Contains(shown.Summary, `takes a free seat on a (nvidia/shared/T4/1): what sits there steps aside; nothing is evicted, since preemption.prefer is "suspend"`) {
					t.Errorf("people are told %q", shown.Summary)
				}
			}
			s.Register(a)
			s.Run(a, "alloc-high", "a", 1, 1, 1)
			key := servicetest.KeyOf(a)
			s.State.Apply([]nomad.Change{{Unblocked: &key}}, s.Index+1)
			s.LetTimePass()
			if due := s.Next(nil, true); due != nil {
				t.Errorf("and then %+v", due)
			}
		})
	}
}

// A seat is looked for where no task sits, then beside those that step aside, then beside any.
func TestWhereASeatIs(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.SeatMachine("a", 0, 3, 90))
	for at, priority := range []int{70, 20} {
		sitter(t, s, "tenant-"+string(rune('0'+at)), priority, at, 0)
	}
	for n, want := range []struct {
		prefer string
		says   string
	}{
		{"T4/2", "it has a seat on nvidia/shared/T4/2 of a, where no other task sits"},
		{"T4/1", "it has a seat on nvidia/shared/T4/1 of a: what sits there (1) steps aside"},
	} {
		a := servicetest.Ask("job-"+string(rune('0'+n)), "1", 1)
		a.Priority, a.Sharing = 50, gpu.SharingSuspend
		d := s.Submit(t, a)
		if got := d.Tasks[0].Devices[0]; got.Name != "nvidia/shared" || got.Prefer != want.prefer || d.Tasks[0].SeatPriority != 50 || !slices.Contains(d.Explanation, want.says) {
			t.Errorf("seat %d: %+v, %q", n, d.Tasks, d.Explanation)
		}
		s.Register(a)
		s.Run(a, "alloc-"+a.JobID, "a", 2-n, 3, 1)
	}
	last := servicetest.Ask("last", "1", 1)
	last.Priority, last.Sharing = 10, gpu.SharingSuspend
	if d := s.Submit(t, last); d.Hold != nil || !slices.ContainsFunc(d.Explanation, func(line string) bool { return strings.Contains(line, "takes turns with what sits there") }) {
		t.Errorf("beside any: %+v", d)
	}
}

// What a queue borrows steps aside first: its seat has the lowest priority.
func TestBorrowedSeatsStepAsideFirst(t *testing.T) {
	s := servicetest.New(t, "queue \"q\" {\n gpus = 0.5\n namespaces = [\"default\"]\n}\n", servicetest.SeatMachine("a", 0, 1, 90))
	for n, want := range []int{60, 60, gpu.MinSeatPriority} { // each seat is a quarter
		a := servicetest.Ask("job-"+string(rune('0'+n)), "1", 1)
		a.Priority, a.Sharing = 60, gpu.SharingSuspend
		if d := s.Submit(t, a); d.Tasks[0].SeatPriority != want {
			t.Errorf("seat %d has priority %d, want %d", n, d.Tasks[0].SeatPriority, want)
		}
		s.Register(a)
		s.Run(a, "alloc-"+a.JobID, "a", 0, n, 1)
	}
	// It keeps it while it runs, whatever becomes free meanwhile: a new one would restart it.
	s.End("alloc-job-0")
	a := servicetest.Ask("job-2", "1", 1)
	a.Priority, a.Sharing = 60, gpu.SharingSuspend
	if d := s.Submit(t, a); d.Tasks[0].SeatPriority != gpu.MinSeatPriority {
		t.Errorf("submitted again it has priority %d", d.Tasks[0].SeatPriority)
	}
}

// What is said of a task that steps aside names what decides: the priority of its seat, not
// of its job, or that it does not use the GPU.
func TestWhyATaskStepsAsideIsSaid(t *testing.T) {
	for name, row := range map[string]struct {
		lab  string // how the queue of the task is
		idle bool
		want string
	}{
		"its queue borrows": {"gpus = 0.1", false, `lab/notebook (seat priority 1, alloc alloc-no) steps aside on node a: job default/high takes a free seat of priority 60 for 1; nothing is evicted, since preemption.prefer is "suspend"`},
		"it is idle":        {"gpus = 8\n idle_after = \"10m\"\n idle_action = \"suspend\"", true, `lab/notebook (seat priority 70, alloc alloc-no) steps aside on node a: it has not used its GPUs since 2027-01-15 08:01 UTC (queue lab: idle_after 10m0s, idle_action "suspend"), and job default/high takes a free seat of priority 60 for 1; nothing is evicted, since preemption.prefer is "suspend"`},
	} {
		t.Run(name, func(t *testing.T) {
			config := servicetest.Quick + "queue \"lab\" {\n " + row.lab + "\n namespaces = [\"lab\"]\n}\nqueue \"q\" {\n gpus = 8\n namespaces = [\"default\"]\n}\n"
			s := servicetest.New(t, config, servicetest.SeatMachine("a", 1, 1, 90))
			s.Tenant(t, "busy", 90, "a", 0, 0, 16)
			a := servicetest.Ask("notebook", "1", 1)
			a.Namespace, a.Priority, a.Sharing = "lab", 70, gpu.SharingSuspend
			s.Submit(t, a)
			s.Register(a)
			s.Run(a, "alloc-notebook", "a", 1, 0, 1)
			if row.idle {
				measured(s, 11, map[string]int64{servicetest.Instance("a", 0, 0): 900, servicetest.Instance("a", 1, 0): 0})
			}
			s.Waits(t, "high", "1", 60)
			due := s.Next(nil, true)
			if due == nil || due.Seat == nil || len(due.Seat.Aside) != 1 {
				t.Fatalf("done is %+v", due)
			}
			if got := due.Seat.Aside[0].Text; got != row.want {
				t.Errorf("it says %q\nwant    %q", got, row.want)
			}
		})
	}
}

// Where no task sits, nothing steps aside, and it is said so.
func TestASeatOnAnIdleGPUIsTaken(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.SeatMachine("a", 1, 1, 90))
	s.Tenant(t, "busy", 90, "a", 0, 0, 16)
	s.Waits(t, "high", "1", 60)
	due := s.Next(nil, true)
	if due == nil || due.Seat == nil || len(due.Seat.Aside) != 0 || !strings.Contains(due.Seat.Text, "job default/high takes a free seat on a ") || !strings.Contains(due.Seat.Text, "where no task sits") {
		t.Errorf("due is %+v", due)
	}
}

// What a seat cannot promise is refused to who asks for one, with what to write.
func TestWhatNoSeatServesIsRefused(t *testing.T) {
	for request, want := range map[string]string{
		"0.5":    `gpu = "0.5": a seat promises no share of compute; write 1, or GPU memory such as 20G`,
		"8G,0.5": "a seat promises no share of compute",
		"2":      `gpu = "2": a task with a seat can use one GPU; write 1, or GPU memory such as 20G`,
		"17G":    "GPU memory too small",
	} {
		s := servicetest.New(t, "", servicetest.SeatMachine("a", 1, 1, 90))
		a := servicetest.Ask("job", request, 1)
		a.Sharing = gpu.SharingSuspend
		if _, err := s.Decide(t.Context(), []admit.Ask{a}, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", request, err)
		}
	}
}

// The author of device blocks gives a seat no more than the queue allows, and a job's priority
// counts no more for its seat.
func TestAQueueBoundsThePriorityOfSeats(t *testing.T) {
	s := servicetest.New(t, "queue \"q\" {\n max_priority = 40\n namespaces = [\"default\"]\n}\n", servicetest.SeatMachine("a", 0, 1, 90))
	for priority, refused := range map[int]bool{0: false, 40: false, 41: true} {
		a := servicetest.Ask("job", "1", 1)
		a.Tasks[0] = admit.TaskAsk{Task: "t", Driver: "containerd", SeatPriority: priority, Devices: []admit.DeviceAsk{{Name: "nvidia/shared", Count: 1}}}
		_, err := s.Decide(t.Context(), []admit.Ask{a}, true)
		if refused != (err != nil && strings.Contains(err.Error(), "gpu.priority: 41 is not valid (1 to 40: queue q allows no more, max_priority)")) || !refused && err != nil {
			t.Errorf("priority %d: %v", priority, err)
		}
	}
	for priority, want := range map[int]int{30: 30, 40: 40, 80: 40} {
		a := servicetest.Ask("job", "1", 1)
		a.Sharing, a.Priority = gpu.SharingSuspend, priority
		d, err := s.Decide(t.Context(), []admit.Ask{a}, true)
		if err != nil || d[0].Tasks[0].SeatPriority != want {
			t.Errorf("a job of priority %d: %+v, %v", priority, d, err)
		}
	}
}

// Work with a seat is not moved: a move ends it, and its neighbors would only step aside.
func TestSeatsAreNotMoved(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.SeatMachine("a", 0, 1, 90))
	sitter(t, s, "notebook", 20, 0, 0)
	s.State.Do(func(tx *state.Tx) {
		u, _ := tx.Capacity.Usage("alloc-notebook")
		if _, may := decide.AskedBy(tx, &u); may || u.SeatPriority != 20 || u.Takes[0] != (place.Take{GPU: 0, Replicas: 1}) {
			t.Errorf("%+v may be moved", u)
		}
	})
}
