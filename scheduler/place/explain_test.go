// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// dear is a planner of a full card of 80 GiB and a free one of 16, for a queue that may hold three
// tenths of a GPU: 8G cost a tenth of the first and half of the second.
func dear(t *testing.T) *Planner {
	t.Helper()
	small := testNode("small", "T4", 1)
	small.GPUs[0].MemoryMiB, small.GPUs[0].Slices = 16384, 16
	p := testPlanner(t, testNode("large", "A100", 1), small)
	held(t, p.snap, "all", "large", 0, 1000, 50)
	q, err := NewQuotas([]Queue{{Name: "q", GuaranteeMilli: 300, LimitMilli: 300}})
	if err != nil {
		t.Fatal(err)
	}
	p.SetQuotas(q, nil)
	return p
}

// What the GPUs that are free would cost counts against a limit, not the least on any, also where
// the caller says the most that a GPU may cost.
func TestALimitCountsWhatThePlaceCosts(t *testing.T) {
	for name, most := range map[string]Charge{"no other bound": {}, "a bound that it keeps": {Milli: 900}} {
		p := dear(t)
		r := ask(t, "r", "8G")
		r.Queue, r.Most = "q", most
		if pl, err := p.Place(&r); !errors.Is(err, ErrQuota) {
			t.Errorf("%s: placed on %q: %v", name, pl.NodeID, err)
		}
	}
	p := dear(t)
	r := ask(t, "r", "4G") // a quarter
	r.Queue = "q"
	if pl, err := p.Place(&r); err != nil || pl.NodeID != "small" {
		t.Errorf("placed on %q: %v", pl.NodeID, err)
	}
}

// An explanation says that a quota forbids the request, beside where it would go.
func TestAnExplanationNamesTheQuota(t *testing.T) {
	p := dear(t)
	for request, forbidden := range map[string]bool{"4G": false, "0.5": true} {
		r := ask(t, "r", request)
		r.Queue = "q"
		e, err := p.Explain(&r, time.Time{})
		if err != nil || (e.Quota != "") != forbidden || len(e.Candidates) != 1 {
			t.Errorf("%s: %+v, %v", request, e, err)
		}
	}
}

// Candidates are listed by score, and those that are as good as each other in the order of the
// nodes, also where they differ in what does not count.
func TestCandidatesAreListedInOrder(t *testing.T) {
	var nodes []Node
	for _, n := range []struct{ id, datacenter string }{{"n0", "x"}, {"n1", "y"}, {"n2", "x"}, {"n3", "y"}} {
		node := testNode(n.id, "A100", 1)
		node.Datacenter = n.datacenter
		nodes = append(nodes, node)
	}
	p := testPlanner(t, nodes...)
	r := ask(t, "r", "8G")
	e, err := p.Explain(&r, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range e.Candidates {
		got = append(got, c.NodeID)
	}
	if want := []string{"n0", "n1", "n2", "n3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
