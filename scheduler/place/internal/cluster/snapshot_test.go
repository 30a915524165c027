// SPDX-License-Identifier: MPL-2.0

package cluster_test

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// Pools are in one class when only a request that names nodes or has constraints
// could tell them apart.
func TestPoolsOfOneStateAreOneClass(t *testing.T) {
	linked := func(id string, i, j int) cluster.Node {
		n := placetest.Node(id, "A100", 4)
		n.GPUs[i].Peers, n.GPUs[j].Peers = []int{j}, []int{i}
		return n
	}
	pooled, distant := placetest.Node("b", "A100", 4), placetest.Node("b", "A100", 4)
	pooled.Pool, distant.Datacenter = "other", "elsewhere"
	cordoned := placetest.Node("b", "A100", 4)
	cordoned.GPUs[1].Cordoned = true
	for _, c := range []struct {
		why        string
		a, b       cluster.Node
		gpuA, gpuB int // what holds a part
		same       bool
	}{
		{"equal", placetest.Node("a", "A100", 4), placetest.Node("b", "A100", 4), 0, 0, true},
		{"the order of GPUs does not matter", placetest.Node("a", "A100", 4), placetest.Node("b", "A100", 4), 0, 3, true},
		{"but where they are linked", linked("a", 0, 1), linked("b", 0, 1), 0, 3, false},
		{"other links", linked("a", 0, 1), linked("b", 0, 2), 0, 0, false},
		{"another model", placetest.Node("a", "A100", 4), placetest.Node("b", "H100", 4), 0, 0, false},
		{"fewer GPUs", placetest.Node("a", "A100", 4), placetest.Node("b", "A100", 2), 0, 0, false},
		{"another pool", placetest.Node("a", "A100", 4), pooled, 0, 0, false},
		{"another datacenter", placetest.Node("a", "A100", 4), distant, 0, 0, false},
		{"a cordon", placetest.Node("a", "A100", 4), cordoned, 0, 0, false},
	} {
		s := snapshot(t, c.a, c.b)
		for i, n := range []string{"a", "b"} {
			u := cluster.Usage{ID: "on " + n, NodeID: n, CPUMHz: 1000, Takes: []cluster.Take{{GPU: []int{c.gpuA, c.gpuB}[i], Milli: 500, Slices: 10}}}
			if err := s.Apply(u); err != nil {
				t.Fatal(err)
			}
		}
		if same := s.Pools[0].Class == s.Pools[1].Class; same != c.same {
			t.Errorf("%s: one class %v, want %v", c.why, same, c.same)
		}
	}
}

// Each amount of a usage that makes no sense is refused, whatever the others are.
func TestApplyRefusesAmounts(t *testing.T) {
	s := snapshot(t, placetest.Node("a", "A100", 2))
	for name, u := range map[string]cluster.Usage{
		"negative compute":  {Takes: []cluster.Take{{Milli: -1}}},
		"negative slices":   {Takes: []cluster.Take{{Slices: -1}}},
		"negative turns":    {Takes: []cluster.Take{{Replicas: -1}}},
		"too many slices":   {Takes: []cluster.Take{{Slices: cluster.MaxSlices + 1}}},
		"too many turns":    {Takes: []cluster.Take{{Replicas: cluster.MaxSlices + 1}}},
		"negative CPU":      {CPUMHz: -1},
		"negative memory":   {MemoryMiB: -1},
		"no such GPU":       {Takes: []cluster.Take{{GPU: 2}}},
		"a GPU before all":  {Takes: []cluster.Take{{GPU: -1}}},
		"a GPU twice":       {Takes: []cluster.Take{{GPU: 1}, {GPU: 1}}},
		"GPUs out of order": {Takes: []cluster.Take{{GPU: 1}, {GPU: 0}}},
		"more CPU":          {CPUMHz: 64001},
		"more memory":       {MemoryMiB: 262145},
		"more compute":      {Takes: []cluster.Take{{Milli: 1001}}},
		"more slices":       {Takes: []cluster.Take{{Slices: 81}}},
		"turns":             {Takes: []cluster.Take{{Replicas: 1}}},
		"no such node":      {NodeID: "b"},
	} {
		if u.ID = "u"; u.NodeID == "" {
			u.NodeID = "a"
		}
		if err := s.Apply(u); err == nil {
			t.Errorf("%s: booked", name)
			s.MustRelease("u")
		}
	}
	all := cluster.Usage{ID: "all", NodeID: "a", CPUMHz: 64000, MemoryMiB: 262144, Takes: []cluster.Take{{GPU: 0, Milli: 1000, Slices: 80}, {GPU: 1, Milli: 1000, Slices: 80}}}
	if err := s.Apply(all); err != nil {
		t.Errorf("all of a node: %v", err)
	}
	if err := s.Apply(all); err == nil {
		t.Error("a usage is booked twice")
	}
}

func TestUpdateNodeRefuses(t *testing.T) {
	s := snapshot(t, placetest.Node("a", "A100", 1))
	bad := placetest.Node("a", "A100", 1)
	bad.CPUMHz = -1
	if err := s.UpdateNode(bad); err == nil {
		t.Error("a node with negative CPU is taken")
	}
	if err := s.UpdateNode(placetest.Node("b", "A100", 1)); err == nil {
		t.Error("a node that is not there is updated")
	}
	if s.Nodes["a"].Spec.CPUMHz != 64000 {
		t.Error("the node changed")
	}
}

// What nodes allow is followed as they come and go: a job is given no more than the lowest.
func TestTheLowestBoundOfSeats(t *testing.T) {
	s := cluster.NewSnapshot()
	node := func(id string, bound int) cluster.Node {
		n := placetest.Node(id, "A100", 1)
		n.GPUs[0].Mode, n.GPUs[0].Sharing, n.GPUs[0].Slices, n.GPUs[0].SliceMiB, n.GPUs[0].Replicas, n.GPUs[0].SeatPriority = gpu.ModeShared, gpu.SharingSuspend, 0, 0, 3, bound
		return n
	}
	check := func(want int) {
		t.Helper()
		if got := s.LowestSeatBound(); got != want || s.HasSeats() != (want > 0) {
			t.Errorf("the lowest bound is %d, want %d; seats: %v", got, want, s.HasSeats())
		}
	}
	if err := s.AddNode(placetest.Node("sliced", "A100", 2)); err != nil {
		t.Fatal(err)
	}
	check(0)
	for id, bound := range map[string]int{"a": 90, "b": 50, "c": 50} {
		if err := s.AddNode(node(id, bound)); err != nil {
			t.Fatal(err)
		}
	}
	check(50)
	if _, err := s.RemoveNode("b"); err != nil {
		t.Fatal(err)
	}
	check(50)
	if err := s.UpdateNode(node("c", 95)); err != nil {
		t.Fatal(err)
	}
	check(90)
	for _, id := range []string{"a", "c"} {
		if _, err := s.RemoveNode(id); err != nil {
			t.Fatal(err)
		}
	}
	check(0)
}

func TestSnapshotCanBeRead(t *testing.T) {
	s := snapshot(t, placetest.Node("n1", "A100", 2))
	if err := s.Apply(cluster.Usage{ID: "a", NodeID: "n1", CPUMHz: 1000, MemoryMiB: 1024, Takes: []cluster.Take{{Milli: 500, Slices: 8}}}); err != nil {
		t.Fatal(err)
	}
	free, ok := s.Free("n1")
	want := cluster.Free{CPUMHz: 63000, MemoryMiB: 261120, GPUs: []cluster.FreeGPU{{Milli: 500, Slices: 72, Tasks: 1}, {Milli: 1000, Slices: 80}}}
	if !ok || fmt.Sprint(free) != fmt.Sprint(want) {
		t.Errorf("free %+v, want %+v", free, want)
	}
	held := s.UsagesOn("n1")
	if len(held) != 1 || held[0].ID != "a" {
		t.Fatalf("held %+v", held)
	}
	held[0].Takes[0].Milli = 1 // a copy
	if u, _ := s.Usage("a"); u.Takes[0].Milli != 500 {
		t.Error("the snapshot can be changed through what it returns")
	}
	if _, ok := s.Free("n2"); ok {
		t.Error("an unknown node has something free")
	}
	if ids := s.NodeIDs(); len(ids) != 1 {
		t.Errorf("nodes %v", ids)
	}
}

// snapshot is a cluster of nodes.
func snapshot(t *testing.T, nodes ...cluster.Node) *cluster.Snapshot {
	t.Helper()
	s := cluster.NewSnapshot()
	for _, n := range nodes {
		if err := s.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return s
}
