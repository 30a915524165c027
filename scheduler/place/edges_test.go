// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
)

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
