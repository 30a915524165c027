// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// burster shows a job that is guaranteed a quarter of a GPU, with a limit, on the first slices of a
// machine's first GPU.
func burster(s *servicetest.Service, id, machine string, limit int64) nomad.JobKey {
	a := servicetest.Ask(id, "0.25", 1)
	a.Tasks[0].LimitMilli = limit
	s.Register(a)
	s.Run(a, "alloc-"+id, machine, 0, 0, 4)
	return servicetest.KeyOf(a)
}

// measured is what a machine's first GPU and the task on its first slices use, a moment later.
func measured(s *servicetest.Service, machine string, gpu, task int64) {
	s.Clock.At = s.Clock.At.Add(30 * time.Second)
	m := nomad.NewMeasurements()
	m.GPUs["GPU-"+machine+"-0"] = view.Measured{At: s.Clock.At, Milli: gpu, MemoryMiB: 100}
	if task >= 0 {
		m.Tasks[servicetest.Instance(machine, 0, 0)] = nomad.TaskUse{At: s.Clock.At, Milli: task, MemoryMiB: 100}
	}
	s.State.Measured("id-"+machine, m)
}

// What a task uses is smoothed, told in steps of the threshold, and not expected above its limit.
// Where MPS holds a task to its guarantee nothing more is expected of it.
func TestUseIsLearned(t *testing.T) {
	for _, c := range []struct {
		name     string
		config   string
		limit    int64
		uses     []int64 // -1: not told
		expected int64   // of the next alloc
		booked   int64   // for the one that runs; 0: its guarantee
	}{
		{"it bursts", "", 1000, []int64{800}, 800, 800},
		{"it bursts up to its limit", "", 600, []int64{800}, 600, 600},
		{"it is held to its guarantee", "", 0, []int64{800}, 250, 0},
		{"it uses less than it is guaranteed", "", 1000, []int64{100}, 100, 0},
		{"it was never measured", "", 1000, []int64{-1}, 0, 0},
		{"once less, and by less than the threshold", "", 1000, []int64{800, 500}, 800, 800},
		{"once much less", "", 1000, []int64{800, 0}, 700, 700},
		{"in rough steps", "resource_change_threshold = 0.3", 1000, []int64{800, 400, 400}, 600, 600},
		{"hot GPUs are not avoided", "placement {\n avoid_hot = false\n}", 1000, []int64{800}, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := servicetest.New(t, c.config, servicetest.Machine("a", 1))
			key := burster(s, "x", "a", c.limit)
			for _, use := range c.uses {
				measured(s, "a", 1000, use)
				measured(s, "a", 1000, -1) // without what the task uses: nothing is learned
			}
			s.State.View(func(r *state.Reader) {
				if got := r.Cluster.ExpectedUse(key, "g", "t", c.limit); got != c.expected {
					t.Errorf("expected to use %d, want %d", got, c.expected)
				}
				if u, _ := r.Capacity.Usage("alloc-x"); u.Takes[0].Expected != c.booked {
					t.Errorf("booked to use %d, want %d", u.Takes[0].Expected, c.booked)
				}
			})
		})
	}
}

// What a GPU is used for beyond what is expected of its tasks is planned with. A device that is busy
// all the time with a task that is held to a quarter is not hot.
func TestUnexpectedUseIsPlannedWith(t *testing.T) {
	for _, c := range []struct {
		name    string
		limit   int64 // -1: nothing runs
		gpu     []int64
		task    int64
		surplus int64
		nodes   bool // measured so that hot GPUs are avoided
	}{
		{"nothing is known to run there", -1, []int64{1000}, -1, 1000, true},
		{"nothing is known to run there any more", -1, []int64{1000, 0}, -1, 0, false},
		{"a task that may burst, whose own use is not known", 1000, []int64{1000}, -1, 750, true},
		{"up to its limit", 500, []int64{1000}, -1, 250, true},
		{"its own use is known", 1000, []int64{900}, 900, 0, true},
		{"a task that may not", 0, []int64{1000}, -1, 0, false},
		{"less than the threshold", 1000, []int64{299}, -1, 0, true},
		{"the threshold", 1000, []int64{300}, -1, 50, true},
		{"a change below the threshold", 1000, []int64{700, 740}, -1, 450, true},
		{"a change by the threshold", 1000, []int64{700, 750}, -1, 500, true},
		{"not known any more", 1000, []int64{1000, view.Unmeasured}, -1, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			if c.limit >= 0 {
				burster(s, "x", "a", c.limit)
			}
			for _, use := range c.gpu {
				measured(s, "a", use, c.task)
			}
			g := read(s, func(r *state.Reader) *nomad.Node { return r.Cluster.Node("id-a") }).Plan.GPUs[0]
			if g.SurplusMilli != c.surplus || g.MeasuredMilli != -1 {
				t.Errorf("%d more than expected, measured %d; want %d and none", g.SurplusMilli, g.MeasuredMilli, c.surplus)
			}
			var want []string
			if c.nodes {
				want = []string{"id-a"}
			}
			if got := s.State.GPUNodes(true); !slices.Equal(got, want) {
				t.Errorf("nodes to measure: %v, want %v", got, want)
			}
		})
	}
}

// With the defaults a job goes to the node that is idle, not beside one that uses the GPU beyond its
// guarantee; where that was never measured, it goes where it always went.
func TestBurstersDoNotShare(t *testing.T) {
	for name, c := range map[string]struct {
		limit, gpu, task int64
		node             string
	}{
		"never measured":             {1000, -1, -1, "a"},
		"it bursts":                  {1000, 1000, 1000, "b"},
		"it seems to burst":          {1000, 1000, -1, "b"},
		"it is held to a quarter":    {0, 1000, -1, "a"},
		"it leaves enough":           {1000, 500, 500, "a"},
		"it does not burst just now": {1000, 200, 200, "a"},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
		burster(s, "x", "a", c.limit)
		if c.gpu >= 0 {
			measured(s, "a", c.gpu, c.task)
		}
		d := s.Submit(t, servicetest.Ask("y", "0.5", 1))
		if len(d.Preferred) == 0 || d.Preferred[0] != "id-"+c.node {
			t.Errorf("%s: it goes to %q, want %s", name, d.Preferred, c.node)
		}
	}
}

// A job that bursts is planned as such when it is submitted again, beside work that keeps to its
// guarantee.
func TestAJobIsExpectedToBurstAgain(t *testing.T) {
	for use, node := range map[int64]string{-1: "id-a", 100: "id-a", 800: "id-b"} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
		burster(s, "x", "b", 1000)
		measured(s, "b", max(0, use), use)
		s.End("alloc-x")
		other := servicetest.Ask("z", "0.5", 1)
		s.Register(other)
		s.Run(other, "alloc-z", "a", 0, 0, 8)
		again := servicetest.Ask("x", "0.25", 1)
		again.Tasks[0].LimitMilli = 1000
		if d := s.Submit(t, again); len(d.Preferred) == 0 || d.Preferred[0] != node {
			t.Errorf("it used %d, and goes to %q, want %s", use, d.Preferred, node)
		}
	}
}
