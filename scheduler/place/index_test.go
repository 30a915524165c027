package place

import (
	"fmt"
	"testing"
)

// A service that runs for months sees shapes that come once. What it keeps for
// them must not grow with their number, and forgetting must not change answers.
func TestShapesThatCameOnceCostLittle(t *testing.T) {
	forgetful, fresh := testPlanner(t, testNode("a", "A100", 4), testNode("b", "A100", 4)), testPlanner(t, testNode("a", "A100", 4), testNode("b", "A100", 4))
	for i := range 1000 {
		r := ask(t, fmt.Sprint("task-", i), "1G")
		r.CPUMHz = int64(10 + i)
		placed, err := forgetful.Place(&r)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []*Planner{forgetful, fresh} {
			if err := p.snap.Apply(placed.Usage); err != nil {
				t.Fatal(err)
			}
			if _, err := p.snap.Release(placed.Usage.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	built := 0
	for _, sh := range forgetful.shapes {
		if sh.index.levels != nil {
			built++
		}
	}
	if built > 2*forgetAtLeast {
		t.Errorf("%d shapes that came once keep their indexes", built)
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
}
