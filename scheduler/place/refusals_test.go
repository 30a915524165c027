// SPDX-License-Identifier: MPL-2.0

package place

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// explain checks that an explanation, which looks only at what changed, says of every
// node what a look at it does, and names the best pools.
func (w *world) explain(r *Request) {
	w.t.Helper()
	if w.rng.IntN(3) > 0 {
		return // so that several changes lie between two looks
	}
	e, err := w.plan.Explain(r, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	sh := w.plan.shapeOf(r)
	fits, refused := 0, map[Reason]int{}
	for _, n := range w.snap.Nodes {
		if why := sh.Refusal(w.snap, n); why.Why != "" {
			refused[why]++
		} else {
			fits++
		}
	}
	if e.Fits != fits || len(e.Reasons) != len(refused) {
		w.t.Fatalf("%d nodes fit, and others do not for %v; want %d and %v", e.Fits, e.Reasons, fits, refused)
	}
	for _, why := range e.Reasons {
		if nodes := refused[Reason{Why: why.Why, Never: why.Never}]; nodes != why.Nodes {
			w.t.Fatalf("%s; want %d", why, nodes)
		}
	}
	var all []Candidate
	for _, b := range w.snap.Pools {
		if b != nil && sh.Fit(w.snap, b) == fit.Fits {
			all = append(all, Candidate{NodeID: b.Node.Spec.ID, Score: int64(w.plan.scorer.Score(sh.Task, b))})
		}
	}
	slices.SortStableFunc(all, func(x, y Candidate) int { return cmp.Compare(y.Score, x.Score) })
	if len(e.Candidates) != min(explained, len(all)) {
		w.t.Fatalf("%d candidates of %d", len(e.Candidates), len(all))
	}
	for i, c := range e.Candidates {
		if c.NodeID != all[i].NodeID || c.Score != all[i].Score {
			w.t.Fatalf("candidate %d is %s with %d, want %s with %d", i, c.NodeID, c.Score, all[i].NodeID, all[i].Score)
		}
	}
}

// TestEvictionsAreCountedWhereNothingFits: what evictions would do is of interest only to
// what has to wait.
func TestEvictionsAreCountedWhereNothingFits(t *testing.T) {
	p := testPlanner(t, testNode("a", "A100", 1), testNode("b", "A100", 1))
	r := ask(t, "r", "1")
	r.Priority = 80
	for i, want := range []int{0, 2} {
		low := ask(t, "low", "1")
		low.ID, low.Priority, low.Nodes = "low-"+string(rune('a'+i)), 10, []string{string(rune('a' + i))}
		pl, err := p.Place(&low)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.snap.Apply(pl.Usage); err != nil {
			t.Fatal(err)
		}
		e, err := p.Explain(&r, time.Time{})
		if err != nil || len(e.Reasons) != 1 || e.Reasons[0].Preempted != want || e.Reasons[0].Nodes != i+1 {
			t.Errorf("with %d nodes in use: %+v, %v; want %d after evictions", i+1, e, err, want)
		}
	}
}
