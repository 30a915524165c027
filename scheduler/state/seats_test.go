// SPDX-License-Identifier: MPL-2.0

package state

import (
	"fmt"
	"slices"
	"testing"
)

// Whoever looked after so many touches is told of all that came since, or that it is too
// long ago: never of less.
func TestTouchesSinceALook(t *testing.T) {
	s := seats{of: map[string]int{}}
	for n := range 3 {
		s.take(fmt.Sprint(n))
	}
	s.touch("unknown")
	if s.touches() != 0 {
		t.Fatal("a node without a seat was touched")
	}
	const all = 3*touchedKept + 7
	at := func(n int) int { return n * n % 3 }
	for n := range all {
		if s.touch(fmt.Sprint(at(n))); s.touches() != uint64(n+1) {
			t.Fatalf("%d touches are counted as %d", n+1, s.touches())
		}
		for _, ago := range []int{0, 1, touchedKept/2 - 1} {
			looked := n + 1 - ago
			if looked < 0 || n%97 != 0 && all-n > 3 {
				continue
			}
			got, ok := s.since(uint64(looked))
			var want []int
			for i := looked; i <= n; i++ {
				want = append(want, at(i))
			}
			if !ok || !slices.Equal(got, want) {
				t.Fatalf("since %d of %d touches: %d of %d, %v", looked, n+1, len(got), len(want), ok)
			}
		}
	}
	for _, looked := range []uint64{0, touchedKept, all + 1} {
		if got, ok := s.since(looked); ok {
			t.Errorf("since %d of %d touches: %d, although they are not known", looked, all, len(got))
		}
	}
}

// A node keeps its seat; that of one that left goes to the next, and to one alone.
func TestSeatsAreKept(t *testing.T) {
	s := seats{of: map[string]int{}}
	for _, node := range []string{"a", "b", "a", "c"} {
		s.take(node)
	}
	s.leave("b")
	s.leave("b")
	s.leave("unknown")
	s.take("d")
	s.take("e")
	if want := []string{"a", "d", "c", "e"}; !slices.Equal(s.nodes, want) || len(s.of) != 4 || s.of["d"] != 1 || s.of["e"] != 3 {
		t.Errorf("seats %v, %v, want %v", s.nodes, s.of, want)
	}
}
