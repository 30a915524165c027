// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// another is a job of a namespace without a queue that runs on a whole GPU.
func another(t *testing.T, b *servicetest.Service, id string, index int) {
	t.Helper()
	a := servicetest.Ask(id, "16G", 1)
	a.Namespace, a.Priority = "other", 10
	b.Submit(t, a)
	b.Register(a)
	b.Run(a, "alloc-"+id, "a", index, 0, 16)
}

// Regression (random history 801): for a job that waited for quota which was owed to work that Nomad may
// start at any time, other work was evicted, and the queue was above its bound once both ran.
func TestQuotaIsNotGivenTwice(t *testing.T) {
	for _, free := range []bool{false, true} {
		for allocs := 1; allocs <= 2; allocs++ {
			b := servicetest.New(t, servicetest.Quick+servicetest.OneGPU, servicetest.Machine("a", 2))
			another(t, b, "one", 0)
			if !free {
				another(t, b, "two", 1)
			}
			admitted := servicetest.Ask("admitted", "12G", 1)
			b.Submit(t, admitted)
			recordedAs(b, admitted, func(g *record.Group) { g.Decision.Hold = nil }) // it was let go
			b.Register(admitted)
			b.Block(admitted, 1)
			b.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(admitted), "g") }) // Nomad found no room for it, for a reason of its own
			b.LetTimePass()
			high := servicetest.Ask("high", "8G", allocs)
			high.Priority = 80
			b.Submit(t, high)
			b.Register(high)
			b.Block(high, allocs)
			b.Pass(servicetest.Settled)
			if hold := b.Record(servicetest.KeyOf(high)).Groups["g"].Decision.Hold; hold == nil || hold.Kind != view.WaitsForQuota {
				t.Fatalf("it is not held for quota: %+v", hold)
			}
			if item := b.Next(map[string]bool{"default/admitted": true}, true); item != nil {
				t.Errorf("free %t, %d allocs: got %+v, %+v", free, allocs, item, item.Evict)
			}
		}
	}
}

// What a queue owes counts for it and for those above it, not for its neighbors.
func TestWhatANeighborIsOwedHoldsNothing(t *testing.T) {
	const queues = `
queue "org" {
  max_gpus = 2.5
}
queue "x" {
  parent     = "org"
  max_gpus   = 2
  namespaces = ["x"]
}
queue "y" {
  parent     = "org"
  max_gpus   = 2
  namespaces = ["y"]
}
`
	for name, row := range map[string]struct {
		request string
		held    bool
	}{"its own bound is kept": {"8G", false}, "that of both is not": {"12G", true}} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, queues, servicetest.Machine("a", 4))
			waits := servicetest.Ask("waits", "16G", 2)
			waits.Namespace = "x"
			b.Submit(t, waits)
			b.Register(waits)
			b.Block(waits, 2)
			b.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(waits), "g") })
			b.State.View(func(r *state.Reader) {
				if owed := r.Queue.Owed("x", servicetest.KeyOf(admit.Ask{})); owed == (place.Charge{}) || r.Queue.Owed("y", servicetest.KeyOf(admit.Ask{})) != (place.Charge{}) {
					t.Fatalf("x owes %s", owed)
				}
			})
			a := servicetest.Ask("next", row.request, 1)
			a.Namespace = "y"
			if d := b.Submit(t, a); (d.Hold != nil) != row.held {
				t.Errorf("got %+v", d.Hold)
			}
		})
	}
}
