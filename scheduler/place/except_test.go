// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"testing"
)

// A placement that leaves out some nodes is the one on a list of all others, and changes no later one.
func TestNodesThatAreLeftOut(t *testing.T) {
	compared := 0
	for seed := range uint64(20) {
		w := newWorld(t, seed, false)
		for range 60 {
			w.place()
			r := w.request()
			first, err := w.plan.Place(&r)
			without := map[string]bool{}
			for err == nil {
				without[first.NodeID] = true
				listed, except := r, r
				listed.Nodes, except.Except = w.plan.otherNodes(r.Nodes, nodesOf(without)), without
				if len(listed.Nodes) == 0 {
					break
				}
				want, none := w.plan.Place(&listed)
				got, err2 := w.plan.Place(&except)
				if (none == nil) != (err2 == nil) || err2 != nil && !errors.Is(err2, ErrNoRoom) || want.NodeID != got.NodeID {
					t.Fatalf("seed %d, without %v: %+v (%v), want %+v (%v)", seed, without, got, err2, want, none)
				}
				if err2 == nil {
					compared++
				}
				first, err = got, err2
			}
			if again, err := w.plan.Place(&r); err == nil && !without[again.NodeID] {
				t.Fatalf("seed %d: it goes to %s after that", seed, again.NodeID)
			}
		}
	}
	if compared < 1000 {
		t.Errorf("%d placements were compared", compared)
	}
}

func nodesOf(set map[string]bool) (list []string) {
	for id := range set {
		list = append(list, id)
	}
	return list
}
