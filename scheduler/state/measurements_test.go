// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What is measured is shown at once; the planner hears of it where it reads it, and
// only of changes that count.
func TestMeasurements(t *testing.T) {
	for name, row := range map[string]struct {
		config               string
		milli, memory        int64 // of the second GPU, after 500 and 4000
		noticed              bool
		planMilli, planMemor int64
	}{
		"less than the threshold": {"placement {\n measured = 1\n}", 549, 4000, false, 500, 4000},
		"the threshold":           {"placement {\n measured = 1\n}", 550, 4000, true, 550, 4000},
		"as much less":            {"placement {\n measured = 1\n}", 450, 4000, true, 450, 4000},
		"memory":                  {"placement {\n measured = 1\n}", 500, 4000 + 16*1024/20 + 1, true, 500, 4000 + 16*1024/20 + 1},
		"not known any more":      {"placement {\n measured = 1\n}", view.Unmeasured, view.Unmeasured, true, -1, -1},
		"not read by the planner": {"", 900, 9000, false, -1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, row.config, servicetest.Machine("a", 2))
			s.State.Measured("id-a", nomad.Measurements{GPUs: map[string]view.Measured{"GPU-a-1": {Milli: 500, MemoryMiB: 4000}}})
			before := read(s, func(r *state.Reader) uint64 { return r.Capacity.Epoch() })
			version := read(s, (*state.Reader).Version)
			s.State.Measured("id-a", nomad.Measurements{GPUs: map[string]view.Measured{"GPU-a-1": {Milli: row.milli, MemoryMiB: row.memory, PowerW: 7}}})
			s.State.View(func(r *state.Reader) {
				n := r.Cluster.Node("id-a")
				if g := n.View.GPUs[1].Measured; g.Milli != row.milli || g.PowerW != 7 || n.View.GPUs[0].Measured.Milli != view.Unmeasured {
					t.Errorf("shown: %+v", n.View.GPUs)
				}
				if g := n.Plan.GPUs[1]; g.MeasuredMilli != row.planMilli || g.MeasuredMemoryMiB != row.planMemor {
					t.Errorf("planned with: %d, %d", g.MeasuredMilli, g.MeasuredMemoryMiB)
				}
				if r.Version() == version {
					t.Error("there will be no further look")
				}
			})
			s.State.Apply([]nomad.Change{{Node: servicetest.Machine("a", 2)}}, 99)
			if g := read(s, func(r *state.Reader) *nomad.Node { return r.Cluster.Node("id-a") }).View.GPUs[1].Measured; g.PowerW != 7 {
				t.Errorf("forgotten when the node changed: %+v", g)
			}
			_ = before
		})
	}
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	s.State.Measured("id-b", nomad.Measurements{GPUs: map[string]view.Measured{"GPU-b-0": {Milli: 5}}})
	down, cpu := servicetest.Machine("c", 1), servicetest.Machine("d", 0)
	down.View.Status = "down"
	s.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 1)}, {Node: down}, {Node: cpu}}, 2)
	if g := read(s, func(r *state.Reader) *nomad.Node { return r.Cluster.Node("id-b") }).View.GPUs[0].Measured; g.Milli != 5 {
		t.Errorf("measured before the node was known: %+v", g)
	}
	if ids := s.State.GPUNodes(false); len(ids) != 2 || ids[0] != "id-a" || ids[1] != "id-b" {
		t.Errorf("GPU nodes: %v", ids)
	}
}

// Nothing is decided blindly, and what Nomad says ends that.
func TestReady(t *testing.T) {
	s := servicetest.New(t, "")
	clock := s.Clock
	fresh := state.New(read(s, (*state.Reader).Config), clock.Now)
	says := func() string {
		var err error
		if fresh.View(func(r *state.Reader) { err = r.Cluster.Ready() }); err == nil {
			return ""
		}
		if !errors.Is(err, state.ErrBlind) {
			t.Errorf("not known as blind: %v", err)
		}
		return err.Error()
	}
	if got := says(); got != "no view of the cluster: Nomad has not answered yet" {
		t.Error(got)
	}
	fresh.Lost(errors.New("connection refused"))
	if got := says(); got != "no view of the cluster: connection refused" {
		t.Error(got)
	}
	fresh.Heard()
	if got := says(); got != "" {
		t.Error(got)
	}
	fresh.Lost(errors.New("connection refused"))
	clock.At = clock.At.Add(time.Minute)
	if got := says(); got != "" {
		t.Error(got)
	}
	clock.At = clock.At.Add(time.Second)
	if got := says(); got != "no view of the cluster: Nomad was last heard 1m1s ago" {
		t.Error(got)
	}
	fresh.Heard()
	if got := says(); got != "" {
		t.Error(got)
	}
}

// Nodes come, change and go with what lies on them.
func TestNodes(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("b", 1), servicetest.Machine("a", 1))
	a := servicetest.Ask("one", "1G", 1)
	s.Register(a)
	s.Run(a, "on-c", "c", 0, 0, 3)
	s.Run(a, "on-a", "a", 0, 0, 2)
	wantSlices(t, s, "c", 0, "before the node is known")
	s.State.Apply([]nomad.Change{{Node: servicetest.Machine("c", 1)}}, 9)
	wantSlices(t, s, "c", 3, "once it is")
	wantSlices(t, s, "a", 2, "elsewhere")
	order := func() (list string) {
		for _, id := range read(s, func(r *state.Reader) []string { return r.Cluster.NodeIDs() }) {
			list += id + " "
		}
		return list
	}
	if order() != "id-a id-b id-c " {
		t.Errorf("order %s", order())
	}
	s.State.Apply([]nomad.Change{{NodeGone: "id-b"}, {NodeGone: "id-x"}}, 10)
	if order() != "id-a id-c " || read(s, func(r *state.Reader) *nomad.Node { return r.Cluster.Node("id-b") }) != nil {
		t.Errorf("order %s", order())
	}
	s.State.Apply([]nomad.Change{{NodeGone: "id-c"}}, 11)
	s.State.Apply([]nomad.Change{{Node: servicetest.Machine("c", 1)}}, 12)
	wantSlices(t, s, "c", 3, "when it is back")
	s.State.Apply([]nomad.Change{{AllocGone: "on-c"}, {AllocGone: "unknown"}}, 13)
	wantSlices(t, s, "c", 0, "when the alloc is gone")
	if n := read(s, func(r *state.Reader) int { return r.Cluster.Live(servicetest.KeyOf(a), "g") }); n != 1 {
		t.Errorf("%d run", n)
	}
	if read(s, func(r *state.Reader) uint64 { return r.Cluster.Index() }) != 13 {
		t.Error("another index")
	}
	// A node that cannot be planned for is left out, and told.
	broken := servicetest.Machine("a", 1)
	broken.Plan.CPUMHz = -1
	s.State.Apply([]nomad.Change{{Node: broken}}, 14)
	if events := s.Cluster(t).Events; order() != "id-c " || len(events) != 1 || events[0].Kind != "error" {
		t.Errorf("order %s, events %v", order(), events)
	}
	s.State.Apply([]nomad.Change{{Node: servicetest.Machine("a", 1)}}, 15)
	wantSlices(t, s, "a", 2, "when it is well again")
}
