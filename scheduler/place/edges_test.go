package place

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// Each amount of a usage that makes no sense is refused, whatever the others are.
func TestApplyRefusesAmounts(t *testing.T) {
	s := testPlanner(t, testNode("a", "A100", 2)).snap
	for name, u := range map[string]Usage{
		"negative compute":  {Takes: []Take{{Milli: -1}}},
		"negative slices":   {Takes: []Take{{Slices: -1}}},
		"negative turns":    {Takes: []Take{{Replicas: -1}}},
		"too many slices":   {Takes: []Take{{Slices: cluster.MaxSlices + 1}}},
		"too many turns":    {Takes: []Take{{Replicas: cluster.MaxSlices + 1}}},
		"negative CPU":      {CPUMHz: -1},
		"negative memory":   {MemoryMiB: -1},
		"no such GPU":       {Takes: []Take{{GPU: 2}}},
		"a GPU before all":  {Takes: []Take{{GPU: -1}}},
		"a GPU twice":       {Takes: []Take{{GPU: 1}, {GPU: 1}}},
		"GPUs out of order": {Takes: []Take{{GPU: 1}, {GPU: 0}}},
		"more CPU":          {CPUMHz: 64001},
		"more memory":       {MemoryMiB: 262145},
		"more compute":      {Takes: []Take{{Milli: 1001}}},
		"more slices":       {Takes: []Take{{Slices: 81}}},
		"turns":             {Takes: []Take{{Replicas: 1}}},
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
	all := Usage{ID: "all", NodeID: "a", CPUMHz: 64000, MemoryMiB: 262144, Takes: []Take{{GPU: 0, Milli: 1000, Slices: 80}, {GPU: 1, Milli: 1000, Slices: 80}}}
	if err := s.Apply(all); err != nil {
		t.Errorf("all of a node: %v", err)
	}
	if err := s.Apply(all); err == nil {
		t.Error("a usage is booked twice")
	}
}

func TestUpdateNodeRefuses(t *testing.T) {
	s := testPlanner(t, testNode("a", "A100", 1)).snap
	bad := testNode("a", "A100", 1)
	bad.CPUMHz = -1
	if err := s.UpdateNode(bad); err == nil {
		t.Error("a node with negative CPU is taken")
	}
	if err := s.UpdateNode(testNode("b", "A100", 1)); err == nil {
		t.Error("a node that is not there is updated")
	}
	if s.Nodes["a"].Spec.CPUMHz != 64000 {
		t.Error("the node changed")
	}
}

// Victims are found wherever they are: also where many pools promise more and keep nothing
// of it, because what runs there may not be evicted.
func TestVictimsBeyondTheMostPromisingPools(t *testing.T) {
	var nodes []Node
	for i := range manyNodes {
		nodes = append(nodes, testNode(fmt.Sprintf("n%02d", i), "A100", 1))
	}
	p := testPlanner(t, nodes...)
	for i := range nodes {
		priority, change := 1, func(u *Usage) { u.Pinned = true }
		if i == 5 {
			priority, change = 20, func(*Usage) {}
		}
		held(t, p.snap, fmt.Sprint("u", i), nodes[i].ID, 0, 1000, priority, change)
	}
	r := ask(t, "urgent", "1")
	r.Priority = 50
	plan, err := p.Preempt([]Request{r}, noon.Add(time.Hour))
	if err != nil || len(plan.Victims) != 1 || plan.Victims[0].ID != "u5" {
		t.Errorf("victims %+v, %v", plan.Victims, err)
	}
}

// Names of models mean the short type, the NVML name, and that as a label, in any case.
func TestModelNames(t *testing.T) {
	g := GPU{Model: "NVIDIA A100-PCIE-40GB", Type: "A100"}
	for name, want := range map[string]bool{
		"A100": true, "a100": true, "NVIDIA A100-PCIE-40GB": true, "nvidia-a100-pcie-40gb": true,
		"A10": false, "NVIDIA": false, "": false, "H100": false,
	} {
		if g.Is(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

// What is wrong with a node is said.
func TestNodesAreValidated(t *testing.T) {
	for says, change := range map[string]func(n *Node){
		"no ID":                       func(n *Node) { n.ID = "" },
		"negative CPU or memory":      func(n *Node) { n.MemoryMiB = -1 },
		"GPUs, at most":               func(n *Node) { n.GPUs = slices.Repeat(n.GPUs[:1], cluster.MaxGPUs+1) },
		"GPU 0: no ID":                func(n *Node) { n.GPUs[0].ID = "" },
		"is listed twice":             func(n *Node) { n.GPUs[1].ID = n.GPUs[0].ID },
		`mode "shard"`:                func(n *Node) { n.GPUs[0].Mode = "shard" },
		"negative memory, slices":     func(n *Node) { n.GPUs[0].MemoryMiB = -1 },
		"mode slice with 0 slices":    func(n *Node) { n.GPUs[0].Slices = 0 },
		"mode slice with 80 slices":   func(n *Node) { n.GPUs[0].SliceMiB = 0 },
		"mode whole with 80 slices":   func(n *Node) { n.GPUs[0].Mode = "whole" },
		"mode shared with 0 replicas": func(n *Node) { g := &n.GPUs[0]; g.Mode, g.Slices, g.SliceMiB = "shared", 0, 0 },
		"slices or replicas":          func(n *Node) { n.GPUs[0].Slices = cluster.MaxSlices + 1 },
		"peer 2 is not on the node":   func(n *Node) { n.GPUs[0].Peers = []int{1, 2} },
		"peer -1 is not on the node":  func(n *Node) { n.GPUs[0].Peers = []int{-1} },
	} {
		n := testNode("a", "A100", 2)
		change(&n)
		if err := n.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	n := testNode("a", "A100", 2)
	n.GPUs[0].Peers = []int{0, 1}
	if err := n.Validate(); err != nil {
		t.Error(err)
	}
}

// Of a group the largest is placed first: by GPUs, then by CPU, then as it was written.
func TestTheLargestComesFirst(t *testing.T) {
	rs := []Request{
		{ID: "part", ShareMilli: 500, GPUs: 1, CPUMHz: 9000}, {ID: "one", GPUs: 1, ShareMilli: 1000, CPUMHz: 10}, {ID: "two", GPUs: 2, ShareMilli: 1000, CPUMHz: 10},
		{ID: "one with CPU", GPUs: 1, ShareMilli: 1000, CPUMHz: 20}, {ID: "one more", GPUs: 1, ShareMilli: 1000, CPUMHz: 10}, {ID: "none", CPUMHz: 90_000},
	}
	var got []string
	for _, i := range bySize(rs) {
		got = append(got, rs[i].ID)
	}
	if want := []string{"two", "one with CPU", "one", "one more", "part", "none"}; !slices.Equal(got, want) {
		t.Errorf("placed in the order %q, want %q", got, want)
	}
}

// What a request demands of a node or a device counts each time, whoever asked before.
func TestConditionsAreNotMistakenForOthers(t *testing.T) {
	a, b := testNode("a", "A100", 4), testNode("b", "A100", 4)
	a.Attributes, b.Attributes = map[string]string{"meta.rack": "1", "meta.row": "x"}, map[string]string{"meta.rack": "2", "meta.row": "x"}
	p := testPlanner(t, a, b)
	for i, demands := range [][]string{{"1", "x"}, {"2", "x"}, {"1"}, {"2"}, {"1", "y"}} {
		r := Request{ID: fmt.Sprint(i), GPUs: 1, Whole: true, CPUMHz: 1}
		for k, right := range demands {
			r.Constraints = append(r.Constraints, constraint.Constraint{Left: []string{"${meta.rack}", "${meta.row}"}[k], Operand: "=", Right: right})
		}
		pl, err := p.Place(&r)
		want := map[string]string{"1": "a", "2": "b"}[demands[0]]
		if slices.Contains(demands, "y") {
			want = ""
		}
		if (err == nil) != (want != "") || err == nil && pl.Usage.NodeID != want {
			t.Errorf("demand %q: placed on %q, %v, want %q", demands, pl.Usage.NodeID, err, want)
		}
	}
}

// Without quotas a queue bounds nothing.
func TestAQueueWithoutQuotas(t *testing.T) {
	p := testPlanner(t, testNode("a", "A100", 1))
	if _, err := p.Place(&Request{ID: "r", Queue: "team", GPUs: 1, Whole: true}); err != nil {
		t.Error(err)
	}
}
