// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestPreemptApartAgainstEveryChoice holds plans for tasks that take a node each against all ways
// to place them and to evict for them, in small clusters: there is a plan where there is a way, its
// victims are of the lowest priority that will do, and each of them has to go.
func TestPreemptApartAgainstEveryChoice(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	found := map[bool]int{}
	for round := range 400 {
		nodes, gpus := 2+r.IntN(3), 1+r.IntN(2)
		var list []Node
		for n := range nodes {
			list = append(list, testNode(fmt.Sprintf("n%d", n), "A100", gpus))
		}
		p := testPlanner(t, list...)
		s := p.snap
		var works []work
		for n := range nodes {
			for k := range gpus {
				if r.IntN(5) > 0 {
					w := work{fmt.Sprintf("w%d-%d", n, k), n, 10 * (1 + r.IntN(6))}
					works = append(works, w)
					held(t, s, w.id, fmt.Sprintf("n%d", w.node), k, 1000, w.priority)
				}
			}
		}
		tasks, wide := 1+r.IntN(3), 1+r.IntN(gpus)
		var rs []Request
		var apart []string
		for i := range tasks {
			rs, apart = append(rs, ask(t, fmt.Sprintf("t%d", i), fmt.Sprint(wide))), append(apart, "gang")
			rs[i].Priority = 45
		}
		// A node will do if what may go and what is free is enough; it costs its highest priority
		// among the fewest of the lowest that must go.
		limit := -1
		for _, top := range []int{0, 10, 20, 30, 40} {
			able := 0
			for n := range nodes {
				free := gpus
				for _, w := range works {
					if w.node == n && w.priority > top {
						free--
					}
				}
				if free >= wide {
					able++
				}
			}
			if able >= tasks {
				limit = top
				break
			}
		}
		plan, err := p.PreemptApart(rs, apart, noon)
		found[limit >= 0]++
		if limit < 0 {
			if !errors.Is(err, ErrNoRoom) {
				t.Errorf("round %d: %v, and there is no way", round, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("round %d: %v, and there is a way", round, err)
			continue
		}
		on, gone, top := map[string]bool{}, map[string]bool{}, 0
		for _, pl := range plan.Placements {
			if on[pl.NodeID] {
				t.Errorf("round %d: two are on %s", round, pl.NodeID)
			}
			on[pl.NodeID] = true
		}
		for _, v := range plan.Victims {
			gone[v.ID], top = true, max(top, v.Priority)
		}
		if top > limit {
			t.Errorf("round %d: work of priority %d goes, and %d would do", round, top, limit)
		}
		for id := range on {
			free, goes := gpus, 0
			for _, w := range works {
				if fmt.Sprintf("n%d", w.node) == id {
					if free--; gone[w.id] {
						goes++
					}
				}
			}
			if goes != max(0, wide-free) {
				t.Errorf("round %d: %d go on %s, where %d are enough", round, goes, id, max(0, wide-free))
			}
			for _, w := range works {
				if fmt.Sprintf("n%d", w.node) == id && gone[w.id] {
					delete(gone, w.id)
				}
			}
		}
		if len(gone) > 0 {
			t.Errorf("round %d: on nodes that nothing goes to: %v", round, gone)
		}
	}
	if found[true] < 50 || found[false] < 50 {
		t.Errorf("with a way and without: %v", found)
	}
}

// work is a whole GPU of a node that is held.
type work struct {
	id             string
	node, priority int
}

// Only those of one name are apart.
func TestPreemptApartByName(t *testing.T) {
	for name, row := range map[string]struct {
		apart []string
		nodes int // that it takes; 0: there is no room
	}{
		"none":        {nil, 1},
		"without one": {[]string{"", ""}, 1},
		"of one name": {[]string{"a", "a"}, 0},
		"of two":      {[]string{"a", "b"}, 1},
	} {
		p := testPlanner(t, testNode("n1", "A100", 2))
		held(t, p.snap, "w1", "n1", 0, 1000, 10)
		held(t, p.snap, "w2", "n1", 1, 1000, 10)
		rs := []Request{ask(t, "x", "1"), ask(t, "y", "1")}
		rs[0].Priority, rs[1].Priority = 50, 50
		plan, err := p.PreemptApart(rs, row.apart, noon)
		if room := err == nil; room != (row.nodes > 0) || room && victims(plan) != "w1 w2" {
			t.Errorf("%s: %s, %v", name, victims(plan), err)
		}
	}
}
