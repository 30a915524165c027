// SPDX-License-Identifier: MPL-2.0

package ranking

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// best are the entries with the highest score, found by looking at all.
func best(scores []int32) (ids []int32) {
	top := slices.Max(scores)
	for i, s := range scores {
		if s == top && s != Absent {
			ids = append(ids, int32(i))
		}
	}
	return ids
}

func TestTreeFindsTheBest(t *testing.T) {
	for _, n := range []int{1, 2, block, block + 1, block * block, 3*block*block + 5} {
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		var tree Tree
		tree.Grow(n)
		if got := tree.Top(nil, false); got != nil {
			t.Errorf("%d entries: %v are the best of none", n, got)
		}
		scores := slices.Repeat([]int32{Absent}, n)
		for range 2000 {
			id := rng.IntN(n)
			scores[id] = int32(rng.IntN(6) - 3)
			if scores[id] == -3 {
				scores[id] = Absent
			}
			tree.Set(id, scores[id])
			want := best(scores)
			if got := tree.Top(nil, false); !slices.Equal(got, want) {
				t.Fatalf("%d entries: the best are %v, want %v", n, got, want)
			}
			if got := tree.Top([]int32{7}, true); !slices.Equal(got, append([]int32{7}, want[:min(1, len(want))]...)) {
				t.Fatalf("%d entries: the first of the best is %v, want %v", n, got, want)
			}
		}
		if !slices.Equal(tree.Scores(), scores) || tree.Len() != n {
			t.Errorf("%d entries: %d scores are not those that were set", n, tree.Len())
		}
	}
}

func TestTreeKeepsScoresWhenItGrows(t *testing.T) {
	var tree Tree
	if !tree.Empty() || tree.Len() != 0 || tree.Top(nil, true) != nil {
		t.Error("a new tree is not empty")
	}
	tree.Grow(3)
	copy(tree.Scores(), []int32{1, 5, 2})
	tree.Rebuild()
	tree.Grow(100)
	if got := tree.Top(nil, false); !slices.Equal(got, []int32{1}) || tree.Empty() || tree.Len() != 100 {
		t.Errorf("the best is %v of %d", got, tree.Len())
	}
}

func TestLogKeepsTheLatest(t *testing.T) {
	var l Log
	if ids, ok := l.Since(0); !ok || len(ids) != 0 || l.End() != 0 {
		t.Errorf("a new log has %v", ids)
	}
	for i := range 2*Kept + 1 {
		if at := l.Add(int32(i)); at != int64(i) {
			t.Fatalf("change %d is at %d", i, at)
		}
	}
	if end := l.End(); end != 2*Kept+1 {
		t.Errorf("the log ends at %d", end)
	}
	if _, ok := l.Since(Kept - 1); ok {
		t.Error("what is gone is read")
	}
	ids, ok := l.Since(Kept)
	if !ok || len(ids) != Kept+1 || ids[0] != Kept || ids[Kept] != 2*Kept {
		t.Errorf("%d changes from the first that is kept, %v", len(ids), ok)
	}
	if ids, ok := l.Since(2 * Kept); !ok || !slices.Equal(ids, []int32{2 * Kept}) {
		t.Errorf("the last change is %v, %v", ids, ok)
	}
}
