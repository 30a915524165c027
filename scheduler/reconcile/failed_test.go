// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// restartDelay is for how many seconds Nomad waits until it starts again what failed.
const restartDelay = 30

// crash has an alloc fail by itself. Nomad says so, and a moment later that it will start
// another; that one's failure leaves the other's room and quota free meanwhile.
func (m *model) crash(a *modelAlloc) {
	m.allocs = slices.DeleteFunc(m.allocs, func(o *modelAlloc) bool { return o == a })
	m.index++
	a.stub.ClientStatus, a.stub.ModifyIndex = "failed", m.index
	m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
	m.index++
	a.stub.FollowupEvalID, a.stub.ModifyIndex = "later", m.index
	m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
	a.again = restartDelay
	m.failed = append(m.failed, a)
}

// later counts what of a group failed and is started again at a later time: what differs
// from what is registered is not waited for.
func (m *model) later(j *modelJob, g *api.TaskGroup) (n int) {
	for _, a := range m.failed {
		if a.of(j, g) && a.again > 0 && a.spec == specOf(g) {
			n++
		}
	}
	return n
}

// due counts what of a group failed and is started again now.
func (m *model) due(j *modelJob, g *api.TaskGroup) (n int) {
	for _, a := range m.failed {
		if a.of(j, g) && a.again == 0 {
			n++
		}
	}
	return n
}

func (a *modelAlloc) of(j *modelJob, g *api.TaskGroup) bool {
	return a.stub.JobID == j.key.ID && a.stub.Namespace == j.key.Namespace && a.stub.TaskGroup == *g.Name
}

// replaced has an alloc take the place of one that failed and is not waited for any more.
func (m *model) replaced(j *modelJob, by *modelAlloc) {
	at := slices.IndexFunc(m.failed, func(a *modelAlloc) bool {
		return a.of(j, by.group) && (a.again == 0 || a.spec != by.spec)
	})
	if at < 0 {
		return
	}
	a := m.failed[at]
	m.failed = slices.Delete(m.failed, at, at+1)
	a.stub.NextAllocation, a.stub.ModifyIndex = by.stub.ID, m.index
	m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
}

// Whatever is submitted, stopped, changed and forgotten meanwhile: allocs that fail and are started
// again later put no queue above its bound.
func TestFailedWorkInRandomHistories(t *testing.T) {
	for _, seed := range append([]uint64{31, 550, 686, 1013, 1609, 2718}, histories(t, 12)...) {
		synctest.Test(t, func(t *testing.T) { failingHistory(t, seed) })
		if t.Failed() {
			return
		}
	}
}

func failingHistory(t *testing.T, seed uint64) {
	h := newRun(t, 3, 2, modelConfig)
	h.rng = rand.New(rand.NewPCG(seed, 23))
	for range 6 {
		for range 1 + h.rng.IntN(6) {
			if len(h.allocs) > 0 && h.rng.IntN(2) == 0 {
				if a := h.allocs[h.rng.IntN(len(h.allocs))]; a.stopping == 0 && !a.canary() { // a canary that fails ends its deployment
					h.log = append(h.log, "  fails: "+a.stub.ID+" of "+a.stub.Namespace+"/"+a.stub.JobID)
					h.crash(a)
				}
			}
			h.event(t.Context())
			for range h.rng.IntN(12) {
				h.second(t.Context())
			}
			h.quotaHeld(seed)
		}
		for _, n := range h.nodes {
			if n.SchedulingEligibility != "eligible" {
				h.setEligibility(n, "eligible")
			}
		}
		h.seconds(300)
		h.quotaHeld(seed)
	}
	h.check(seed)
}

// quotaHeld fails where queue a was above its bound for too long.
func (h *modelRun) quotaHeld(seed uint64) {
	if h.longest > mostAbove && !h.t.Failed() {
		h.t.Errorf("seed %d: queue a was above its bound for %d seconds\n%s", seed, h.longest, strings.Join(h.log, "\n"))
	}
}
