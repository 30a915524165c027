// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/evict"
)

// plainGains counts the nodes that would do after evictions, by why they do not now, with a
// look at all of them.
func (w *world) plainGains(r *Request) map[string]int {
	sh, gains := w.plan.shapeOf(r), map[string]int{}
	e := w.plan.eviction(r, sh, w.now, nil)
	if e.Hopeless() {
		return gains
	}
	var fresh evict.Gains
	helps := fresh.Helps(e)
	for _, n := range w.snap.Nodes {
		why := sh.Refusal(w.snap, n)
		if why.Why == "" {
			return nil
		}
		if !why.Never && helps(n.Pools[0].ID) {
			gains[why.Why]++
		}
	}
	return gains
}

// another changes whose some work is, and what may be done to it.
func (w *world) another() {
	if len(w.usages) == 0 {
		return
	}
	u, err := w.snap.Release(w.usages[w.rng.IntN(len(w.usages))])
	if err != nil {
		w.t.Fatal(err)
	}
	u.Job, u.Namespace = []string{"", "web", "train"}[w.rng.IntN(3)], []string{"", "prod"}[w.rng.IntN(2)]
	u.Reclaim, u.Pinned, u.Gang = w.rng.IntN(4) == 0, w.rng.IntN(8) == 0, []string{"", "", "gang"}[w.rng.IntN(3)]
	if u.Priority = 10 * w.rng.IntN(8); w.rng.IntN(2) == 0 {
		u.MinRun = time.Duration(w.rng.IntN(90)) * time.Minute
	}
	if err := w.snap.Observe(u); err != nil {
		w.t.Fatal(err)
	}
}

// asks asks for one of few things that no node has room for as a rule.
func (w *world) asks() Request {
	r := Request{ID: "new", Priority: 20 * w.rng.IntN(5), OnlyIdle: w.rng.IntN(6) == 0, SpareGangs: w.rng.IntN(6) == 0}
	if w.plan.quotas != nil {
		r.Queue = []string{"", "a", "b", "c", "d"}[w.rng.IntN(5)]
	}
	if w.rng.IntN(3) == 0 {
		r.Job, r.Namespace = []string{"web", "train"}[w.rng.IntN(2)], []string{"", "prod"}[w.rng.IntN(2)]
	}
	switch w.rng.IntN(3) {
	case 0:
		r.GPUs, r.Whole, r.CPUMHz = 6, true, 1000
	case 1:
		r.GPUs, r.Whole, r.Close = 4, true, true
	default:
		r.GPUs, r.ShareMilli, r.Models = 5, 900, []string{"V100"}
	}
	return r
}

// TestGainsAreAsOnAFreshLook: what evictions would give is followed change by change, and is
// what a look at every node finds, for whoever asks and whenever.
func TestGainsAreAsOnAFreshLook(t *testing.T) {
	for _, quotas := range []bool{false, true} {
		t.Run(fmt.Sprint("quotas=", quotas), func(t *testing.T) {
			w := newWorld(t, 3, quotas)
			counted := 0
			for range 3000 {
				w.now = w.now.Add(time.Duration(w.rng.IntN(3)-w.rng.IntN(2)) * time.Minute)
				switch op := w.rng.IntN(100); {
				case op < 40:
					w.place()
				case op < 55:
					w.release()
				case op < 85:
					w.another()
				case op < 86:
					w.flipGPU()
				case op < 87:
					w.removeNode()
				case op < 88 && len(w.nodes) < 20:
					w.addNode()
				}
				r := w.asks()
				e, err := w.plan.Explain(&r, w.now)
				if err != nil {
					t.Fatal(err)
				}
				got := map[string]int{}
				for _, why := range e.Reasons {
					if why.Preempted > 0 {
						got[why.Why] += why.Preempted
						counted++
					}
				}
				if want := w.plainGains(&r); !maps.Equal(got, want) {
					t.Fatalf("request %+v: %v nodes would do after evictions, want %v", r, got, want)
				}
			}
			if counted < 100 {
				t.Errorf("evictions would have helped %d times: too few to tell", counted)
			}
		})
	}
}
