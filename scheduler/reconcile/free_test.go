// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// Where many jobs end in the same moment, what comes free goes to the team that holds less until
// both hold the same, and not all of it to whoever is first when it does.
func TestAllThatComesFreeGoesToWhoHoldsLess(t *testing.T) {
	for _, row := range []struct{ greedy, modest, end int }{{6, 2, 1}, {6, 2, 3}, {7, 1, 3}, {7, 1, 5}, {8, 0, 4}} {
		t.Run(fmt.Sprintf("%d and %d, %d end", row.greedy, row.modest, row.end), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 4, fmt.Sprintf(fairConfig, 4, 4))
				for i := range row.greedy {
					h.submit(t.Context(), whole("a", i))
				}
				for i := range row.modest {
					h.submit(t.Context(), whole("b", i))
				}
				h.seconds(5)
				for i := range 8 {
					h.submit(t.Context(), whole("a", 10+i))
				}
				for i := range 8 {
					h.submit(t.Context(), whole("b", 10+i))
				}
				h.seconds(90) // a team below its share waits for one minute
				if h.used("a") != 16*row.greedy || h.used("b") != 16*row.modest {
					t.Fatalf("before, they hold %d and %d slices", h.used("a"), h.used("b"))
				}
				for i := range row.end {
					h.stop(h.jobs[fmt.Sprintf("a/j%d", i)])
				}
				h.seconds(20)
				got, want := h.used("b")/16, min(4, row.modest+row.end)
				if all := h.used("a")/16 + got; got != want || all != 8 {
					t.Errorf("after %d GPUs came free, the modest team holds %d of %d, not %d of 8", row.end, got, all, want)
				}
			})
		})
	}
}
