// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"testing"
)

// A service that runs for months sees shapes that come once. What it keeps for
// them must not grow with their number, whether nodes change or not, and
// forgetting must not change answers.
func TestShapesThatCameOnceCostLittle(t *testing.T) {
	for name, busy := range map[string]bool{"busy": true, "quiet": false} {
		t.Run(name, func(t *testing.T) {
			nodes := []Node{testNode("a", "A100", 4), testNode("b", "A100", 4)}
			forgetful, fresh := testPlanner(t, nodes...), testPlanner(t, nodes...)
			for i := range 1000 {
				r := ask(t, fmt.Sprint("task-", i), "1G")
				r.CPUMHz = int64(10 + i)
				placed, err := forgetful.Place(&r)
				if err != nil {
					t.Fatal(err)
				}
				if busy {
					comeAndGo(t, placed.Usage, forgetful, fresh)
				}
			}
			built := 0
			for _, sh := range forgetful.shapes {
				if !sh.index.Tree.Empty() {
					built++
				}
			}
			if most := 2 * max(forgetAtLeast, len(forgetful.shapes)/8); built > most {
				t.Errorf("%d shapes that came once keep their indexes, at most %d are meant", built, most)
			}
			old := ask(t, "again", "1G")
			old.CPUMHz = 10
			again, err := forgetful.Place(&old)
			if err != nil {
				t.Fatal(err)
			}
			if first, err := fresh.Place(&old); err != nil || first.NodeID != again.NodeID || first.Score != again.Score {
				t.Errorf("answers %v and %v, %v", again, first, err)
			}
		})
	}
}

// comeAndGo lets work start and end on the clusters of planners.
func comeAndGo(t *testing.T, u Usage, planners ...*Planner) {
	t.Helper()
	for _, p := range planners {
		if err := p.snap.Apply(u); err != nil {
			t.Fatal(err)
		}
		if _, err := p.snap.Release(u.ID); err != nil {
			t.Fatal(err)
		}
	}
}
