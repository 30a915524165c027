// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"testing"
)

// untaught plans for so many roomy nodes and knows nothing of what will come.
func untaught(t *testing.T, nodes int) *Planner {
	t.Helper()
	s := NewSnapshot()
	for i := range nodes {
		if err := s.AddNode(roomy(fmt.Sprintf("n%02d", i))); err != nil {
			t.Fatal(err)
		}
	}
	return NewPlanner(s, PolicyBalanced, DefaultWeights())
}

func book(t *testing.T, p *Planner, u Usage) {
	t.Helper()
	if err := p.snap.Apply(u); err != nil {
		t.Fatal(err)
	}
}

// whole books all of so many GPUs of a node.
func whole(t *testing.T, p *Planner, node string, count int) {
	t.Helper()
	u := Usage{ID: "on " + node, NodeID: node}
	for i := range count {
		u.Takes = append(u.Takes, Take{GPU: i, Milli: 1000, Slices: 1000})
	}
	book(t, p, u)
}

// Prices become careful soon after what arrives is unlike what was expected, more so where it
// breaks room for several, and stay as they are where a history or ends say otherwise.
func TestWariness(t *testing.T) {
	small := Request{ID: "small", GPUs: 1, ShareMilli: 200, CPUMHz: 1000, MemoryMiB: 1024}
	one := Request{ID: "one", GPUs: 1, Whole: true, CPUMHz: 1000, MemoryMiB: 1024}
	p := untaught(t, 10)
	arrive := func(r Request, count int) {
		for range count {
			p.Arrive(&r)
		}
	}
	arrive(small, 128)
	if p.caution != 0 {
		t.Errorf("after few arrivals caution is %d", p.caution)
	}
	arrive(small, 128)
	if p.caution != 1 || !p.scorer.Prices.Careful {
		t.Errorf("after many small tasks caution is %d", p.caution)
	}
	whole(t, p, "n00", 3)
	whole(t, p, "n01", 5)
	if p.wariness() != 1 {
		t.Errorf("with nine tenths free it is %d", p.wariness())
	}
	book(t, p, Usage{ID: "last", NodeID: "n02", Takes: []Take{{GPU: 0, Milli: 1, Slices: 1}}})
	if p.wariness() != 0 {
		t.Errorf("with less free it is %d", p.wariness())
	}
	arrive(one, 96)
	if p.caution != p.weights.OddPrices {
		t.Errorf("after many whole GPUs caution is %d", p.caution)
	}
	p.ExpectEnds(1)
	if p.caution != 0 || p.scorer.Prices.Careful {
		t.Errorf("where tasks end caution is %d", p.caution)
	}
	p.scorer.Turnover.Rate = 0
	p.recompute()
	if p.caution == 0 {
		t.Error("where tasks end no longer caution is 0")
	}
	p.Learn([]Request{one})
	if p.caution != 0 {
		t.Errorf("with a history caution is %d", p.caution)
	}
}

// Under careful prices a task goes to the node whose CPU is in use, where it breaks no room
// for several.
func TestCarefulPricesFillWhatLacksCPU(t *testing.T) {
	p := untaught(t, 2)
	book(t, p, Usage{ID: "cpu", NodeID: "n01", CPUMHz: 30_000})
	p.scorer.Prices.Careful, p.scorer.Prices.Slots[8] = true, 80
	p.scorer.Prices.Slots[7], p.scorer.Prices.Slots[6] = 0, 0 // so that one of eight GPUs costs 80, of those with CPU for five nothing
	p.scorer.Prices.Slots[5], p.scorer.Prices.Slots[4] = 0, 0
	p.scorer.Epoch++
	pl, err := p.Place(&Request{ID: "one", GPUs: 1, Whole: true, CPUMHz: 1000, MemoryMiB: 1024})
	if err != nil || pl.NodeID != "n01" {
		t.Errorf("a task of one GPU goes to %q, %v", pl.NodeID, err)
	}
}
