// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/score"
)

// States that are gone are forgotten, and their IDs stand for others: an index
// that slept through that must not take one for the other.
func TestClassesAreForgotten(t *testing.T) {
	p := testPlanner(t, testNode("a", "A100", 4), testNode("b", "A100", 4))
	sleeper := ask(t, "sleeper", "8G")
	for i := range 20 * cluster.KeptVacant {
		u := Usage{ID: fmt.Sprint("u", i), NodeID: "a", CPUMHz: int64(i * 7919 % 63000)}
		if err := p.snap.Apply(u); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			best := int32(score.Worst)
			for _, b := range p.snap.Pools {
				if sh := p.shapeOf(&sleeper); sh.Fit(p.snap, b) == fit.Fits {
					best = max(best, p.scorer.Score(sh.Task, b))
				}
			}
			if got, err := p.Place(&sleeper); err != nil || got.Score != int64(best) {
				t.Fatalf("after %d states: %+v %v, evaluated afresh %d", i, got, err, best)
			}
		}
		p.snap.MustRelease(u.ID)
	}
	if n := len(p.snap.States.List); n > 2*cluster.KeptVacant {
		t.Errorf("%d classes of two pools are kept", n)
	}
}

// Regression: the numbers of a node's pool and of its kind of GPU were mixed into one
// hash so that two of each could cancel out, and what asked for the second pool never
// saw its nodes.
func TestEveryPoolAndKindIsAClassOfItsOwn(t *testing.T) {
	s := NewSnapshot()
	p := NewPlanner(s, PolicyBalanced, DefaultWeights())
	models, pools := []string{"A", "B", "C", "D"}, []string{"one", "two", "three", "four"}
	ask := func(model, pool string) Request {
		return Request{ID: model + pool, GPUs: 1, Whole: true, Models: []string{model}, Pools: []string{pool}}
	}
	for i := range models {
		for k := range pools {
			model, pool := models[i], pools[(i+k)%len(pools)]
			r := ask(model, pool)
			if _, err := p.Place(&r); !errors.Is(err, ErrNoRoom) {
				t.Fatalf("%s in %s before there is any: %v", model, pool, err)
			}
			if err := s.AddNode(Node{ID: model + pool, Pool: pool, GPUs: []GPU{{ID: "g", Model: model, Type: model, Mode: gpu.ModeWhole, MemoryMiB: 1024}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, model := range models {
		for _, pool := range pools {
			r := ask(model, pool)
			if got, err := p.Place(&r); err != nil || got.NodeID != model+pool {
				t.Errorf("%s in %s: %q, %v", model, pool, got.NodeID, err)
			}
		}
	}
}

// Nodes differ by what their work is expected to use only where that is more than it is guaranteed.
func TestExpectationsWithinGuaranteesMakeNoClasses(t *testing.T) {
	for expected, want := range map[int64]int{0: 1, 100: 1, 500: 1, 600: 2} {
		p := testPlanner(t, testNode("a", "A100", 2), testNode("b", "A100", 2))
		held(t, p.snap, "x", "a", 0, 500, 10)
		held(t, p.snap, "y", "b", 0, 500, 10, func(u *Usage) { u.Takes[0].Expected = expected })
		classes := map[int32]bool{}
		for _, b := range p.snap.Pools {
			classes[b.Class] = true
		}
		if len(classes) != want {
			t.Errorf("expected to use %d of 500: %d classes, want %d", expected, len(classes), want)
		}
	}
}
