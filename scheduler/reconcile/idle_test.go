// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// idleConfig is modelConfig with a queue whose idle work makes room.
var idleConfig = strings.Replace(modelConfig, `namespaces = ["b"]`, `namespaces = ["b"]
  idle_after  = "1m"
  idle_action = "evict"`, 1)

// lazy reports whether an alloc uses nothing of what it holds: every other one.
func lazy(alloc string) bool {
	h := fnv.New32a()
	h.Write([]byte(alloc))
	return h.Sum32()%2 == 0
}

// measure shows what all allocs use, as the nodes would tell.
func (h *modelRun) measure() {
	now := time.Now()
	for _, n := range h.nodes {
		m := nomad.NewMeasurements()
		for _, a := range h.allocs {
			if a.stub.NodeID != n.ID {
				continue
			}
			use := nomad.TaskUse{At: now, MemoryMiB: 100}
			if !lazy(a.stub.ID) {
				use.Milli = 1
			}
			for _, d := range a.stub.AllocatedResources.Tasks["t"].Devices {
				for _, id := range d.DeviceIDs {
					m.Tasks[id] = use
				}
			}
		}
		h.believed.Measured(n.ID, m)
	}
}

// Whatever is submitted, stopped and forgotten meanwhile: what is evicted for being idle is of
// the queue that wants that, was never measured to compute, has run for longer than its queue
// allows it to be idle, and goes when something waits. No gang is left in part.
func TestIdleWorkInRandomHistories(t *testing.T) {
	const usual = 12
	evicted, seeds := 0, append([]uint64{533, 976}, histories(t, usual)...) // a gang went on in two versions; allocs were lost that run beside canaries
	for _, seed := range seeds {
		synctest.Test(t, func(t *testing.T) { evicted += idleHistory(t, seed) })
		if t.Failed() {
			return
		}
	}
	if evicted == 0 && len(seeds) >= usual {
		t.Error("nothing was evicted for being idle: the histories show nothing")
	}
	t.Logf("%d were evicted", evicted)
}

func idleHistory(t *testing.T, seed uint64) (evicted int) {
	h := newRun(t, 3, 2, idleConfig)
	h.rng = rand.New(rand.NewPCG(seed, 15))
	began := map[string]time.Time{}
	second := func() {
		for _, a := range h.allocs {
			if began[a.stub.ID].IsZero() {
				began[a.stub.ID] = time.Now()
			}
		}
		waiting := h.waiting()
		h.loop.Audit = func(e view.Event) {
			if e.Kind != "idle" {
				return
			}
			evicted++
			if e.Namespace != "b" || !lazy(e.AllocID) || time.Since(began[e.AllocID]) < time.Minute || waiting == 0 {
				t.Errorf("seed %d: %d wait, and it is said: %s", seed, waiting, e.Text)
			}
		}
		h.second(t.Context())
		if time.Now().Unix()%30 == 0 {
			h.measure()
		}
	}
	for range 6 {
		for range 1 + h.rng.IntN(5) {
			h.event(t.Context())
			for range h.rng.IntN(4) {
				second()
			}
		}
		for _, n := range h.nodes {
			if n.SchedulingEligibility != "eligible" {
				h.setEligibility(n, "eligible")
			}
		}
		for range 300 {
			second()
		}
	}
	h.check(seed)
	return evicted
}
