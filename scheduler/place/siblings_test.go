// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"testing"
)

// Teams under one parent settle it among themselves: what another parent holds within its
// guarantee goes for a higher priority only. Where that has borrowed too, the order of queues
// says whose turn to give is first.
func TestTeamsUnderOneParentSettleItAmongThemselves(t *testing.T) {
	for name, row := range map[string]struct {
		other  int64 // milli that the other parent is guaranteed
		x, z   int   // GPUs that the sibling and the other parent's team hold, of four
		xz     [2]int
		victim string
	}{
		"the sibling has borrowed, the other is within its own":               {2000, 2, 2, [2]int{50, 50}, "x"},
		"the sibling has borrowed, and has a higher priority":                 {2000, 2, 2, [2]int{90, 50}, "x"},
		"the other is within its own, with a lower priority":                  {2000, 2, 2, [2]int{50, 10}, "z"},
		"the sibling has borrowed from both":                                  {2000, 3, 1, [2]int{50, 50}, "x"},
		"only the other has borrowed":                                         {2000, 1, 3, [2]int{50, 50}, "z"},
		"only the other has borrowed, and has a higher priority":              {2000, 1, 3, [2]int{50, 90}, "z"},
		"both have borrowed, and the other holds more of what it is promised": {1000, 2, 2, [2]int{50, 50}, "z"},
	} {
		t.Run(name, func(t *testing.T) {
			p := quotaPlanner(t, 4, Queue{Name: "org", GuaranteeMilli: 2000}, Queue{Name: "x", Parent: "org", GuaranteeMilli: 1000},
				Queue{Name: "y", Parent: "org", GuaranteeMilli: 1000}, Queue{Name: "z", GuaranteeMilli: row.other})
			for i := range row.x {
				held(t, p.snap, fmt.Sprint("x", i), "n1", i, 1000, row.xz[0], inQueue("x"))
			}
			for i := range row.z {
				held(t, p.snap, fmt.Sprint("z", i), "n1", row.x+i, 1000, row.xz[1], inQueue("z"))
			}
			r := ask(t, "new", "1")
			r.Queue, r.Priority = "y", 50
			if plan, err := p.Preempt([]Request{r}, noon); err != nil || len(plan.Victims) != 1 || plan.Victims[0].Queue != row.victim {
				t.Errorf("victims %q, %v, want one of %s", victims(plan), err, row.victim)
			}
		})
	}
}
