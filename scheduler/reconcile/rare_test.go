// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// rareEvent does one thing that is done around the service, or that happens to work.
func (h *modelRun) rareEvent(j *modelJob, kind int) {
	switch kind {
	case 12, 13: // scaled around the service
		if j.job.Dispatched || j.job.IsParameterized() || h.waitsForPromotion(j) {
			return
		}
		count := 1 + h.rng.IntN(5)
		h.log = append(h.log, fmt.Sprintf("  scale %s to %d", j.key, count))
		h.scale(j, count)
	case 14: // purged
		h.log = append(h.log, "  purge "+j.key.String())
		h.stop(j)
		for range 3 {
			h.pass()
		}
		h.purge(j)
	case 15, 16: // killed: Nomad starts another
		if len(h.allocs) > 0 {
			a := h.allocs[h.rng.IntN(len(h.allocs))]
			h.log = append(h.log, fmt.Sprintf("  kill %s of %s", a.stub.ID, a.stub.JobID))
			h.kill(a)
		}
	case 17, 18: // a node takes no new work, or does again
		n := h.nodes[h.rng.IntN(len(h.nodes))]
		to := map[string]string{"eligible": "ineligible", "ineligible": "eligible"}[n.SchedulingEligibility]
		h.log = append(h.log, fmt.Sprintf("  %s is %s", n.Name, to))
		h.setEligibility(n, to)
	case 20, 21: // its canaries are promoted
		h.log = append(h.log, "  promote "+j.key.String())
		h.promote(j)
	case 22, 23: // its deployment fails
		h.log = append(h.log, "  fail "+j.key.String())
		h.fail(j)
	case 19: // dispatched or launched, or dispatched around the service
		if h.odd == nil {
			h.odd = rand.New(rand.NewPCG(1, 11))
		}
		if h.odd.IntN(3) > 0 {
			h.bear(j)
			return
		}
		parent := nomad.JobKey{Namespace: "c", ID: "parent"}
		if h.jobs[parent.String()] == nil {
			h.register(parameterized("parent"))
		}
		h.dispatched++
		id := fmt.Sprintf("parent/dispatch-%d", h.dispatched)
		h.log = append(h.log, "  dispatch "+id)
		h.dispatch(parent, id, 10+20*h.rng.IntN(5))
	}
}

// purge forgets a job with its allocs, as Nomad does, also those that have not ended.
func (m *model) purge(j *modelJob) {
	delete(m.jobs, j.key.String())
	m.forgetPast(j)
	m.allocs = slices.DeleteFunc(m.allocs, func(a *modelAlloc) bool { return a.stub.Namespace == j.key.Namespace && a.stub.JobID == j.key.ID })
	m.index++
	m.tell(nomad.Change{JobGone: &j.key})
}

// waitsForPromotion reports whether Nomad refuses to scale a job.
func (m *model) waitsForPromotion(j *modelJob) bool {
	return slices.ContainsFunc(m.allocs, func(a *modelAlloc) bool {
		return a.stub.JobID == j.key.ID && a.stub.Namespace == j.key.Namespace && a.canary()
	})
}

// scale changes how many allocs a job has, as Nomad's own route does.
func (m *model) scale(j *modelJob, count int) {
	raw, err := json.Marshal(j.job)
	if err != nil {
		m.t.Fatal(err)
	}
	scaled := &api.Job{}
	if err := json.Unmarshal(raw, scaled); err != nil {
		m.t.Fatal(err)
	}
	scaled.TaskGroups[0].Count = &count
	if raw, err = json.Marshal(scaled); err != nil {
		m.t.Fatal(err)
	}
	m.register(raw)
}

// kill ends an alloc at once.
func (m *model) kill(a *modelAlloc) {
	m.allocs = slices.DeleteFunc(m.allocs, func(x *modelAlloc) bool { return x == a })
	m.index++
	a.stub.ClientStatus, a.stub.ModifyIndex = "failed", m.index
	m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
	if j := m.jobs[a.stub.Namespace+"/"+a.stub.JobID]; j != nil && a.stopping == 0 && !a.canary() {
		j.broken[a.stub.TaskGroup]++
	}
	m.schedule()
}

func (m *model) setEligibility(n *api.Node, to string) {
	m.index++
	n.SchedulingEligibility, n.ModifyIndex = to, m.index
	m.tell(nomad.Change{Node: nomad.NewNode(n, nomad.Hardware{})})
	m.schedule()
}
