// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// scaled reports whether a job was born waiting.
func scaled(j *modelJob) bool { return j.job.LookupTaskGroup(admit.HoldGroup) != nil }

// withChildren is a job of namespace a that Nomad makes children of, by the clock or for dispatches.
func withChildren(id, kind, request string, count, priority int) json.RawMessage {
	of := map[string]string{"clock": `"Periodic": {"Enabled": true, "SpecType": "cron", "Spec": "0 0 1 1 *"}`, "dispatched": `"ParameterizedJob": {}`}[kind]
	return json.RawMessage(fmt.Sprintf(`{"ID": %q, "Name": %q, "Namespace": "a", "Type": "batch", "Priority": %d, "Datacenters": ["*"], %s,
		"TaskGroups": [{"Name": "g", "Count": %d, "Tasks": [{"Name": "t", "Driver": "docker", "Meta": {"gpu": %q}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`,
		id, id, priority, of, count, request))
}

// bear has Nomad make a child of a job that came through the service.
func (h *modelRun) bear(of *modelJob) {
	kind := []string{"clock", "dispatched"}[h.odd.IntN(2)]
	parent := nomad.JobKey{Namespace: "a", ID: kind}
	if h.jobs[parent.String()] == nil || h.odd.IntN(4) == 0 {
		raw := withChildren(kind, kind, []string{"1", "4G", "0.5"}[h.odd.IntN(3)], 1+h.odd.IntN(3), 10+20*h.odd.IntN(5))
		h.log = append(h.log, "  submit "+string(raw))
		h.submit(h.t.Context(), raw)
	}
	if h.jobs[parent.String()] == nil {
		return
	}
	h.born++
	id := fmt.Sprintf("%s/child-%d", kind, h.born)
	h.log = append(h.log, "  child "+id)
	if kind == "clock" {
		h.launch(parent, id)
	} else {
		h.dispatch(parent, id, 10+20*h.odd.IntN(5))
	}
}

// children lists those of a job that run, in order of their IDs.
func (h *modelRun) children(of string) (list []string) {
	for name, j := range h.jobs {
		if strings.HasPrefix(name, of+"/") && slices.ContainsFunc(h.allocs, func(a *modelAlloc) bool { return a.stub.JobID == j.key.ID && a.stopping == 0 }) {
			list = append(list, strings.TrimPrefix(name, of+"/"))
		}
	}
	slices.Sort(list)
	return list
}

var dispatches = nomad.JobKey{Namespace: "a", ID: "p"}

// Children wait in the order like any other job: by their priority, and within their queue.
func TestChildrenWaitInOrder(t *testing.T) {
	for _, kind := range []string{"clock", "dispatched"} {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 3, 2, modelConfig)
			h.submit(t.Context(), withChildren("p", kind, "1", 1, 50))
			for i, priority := range []int{20, 60, 40, 80} {
				if id := fmt.Sprintf("p/%d", priority); kind == "clock" {
					h.launch(dispatches, fmt.Sprintf("p/%d", i))
				} else {
					h.dispatch(dispatches, id, priority)
				}
				h.second(t.Context())
			}
			h.seconds(20)
			for _, want := range map[string][]string{"clock": {"[0 1]", "[1 2]", "[2 3]", "[3]", "[]"}, "dispatched": {"[60 80]", "[40 80]", "[20 80]", "[80]", "[]"}}[kind] {
				got := h.children("a/p")
				if fmt.Sprint(got) != want {
					t.Fatalf("%s: %v run, want %s\n%s", kind, got, want, strings.Join(h.log, "\n"))
				}
				if len(got) > 0 {
					h.finish(h.jobs["a/p/"+got[0]])
				}
				h.seconds(10)
			}
			for name, j := range h.jobs {
				if name != "a/p" && (*j.job.ParentID != "p" || !j.ended) {
					t.Errorf("%s: the parent of %s is %s, and it ended: %v", kind, name, *j.job.ParentID, j.ended)
				}
			}
			if h.longest > 0 || h.unchangeable > 0 {
				t.Errorf("%s: %d seconds above, %d changes\n%s", kind, h.longest, h.unchangeable, strings.Join(h.log, "\n"))
			}
		})
	}
}

// A child makes room for what goes first, as one, and comes back; nothing starts of it meanwhile.
func TestAChildMakesRoom(t *testing.T) {
	for count := 1; count <= 2; count++ {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 1, count, modelConfig)
			h.submit(t.Context(), withChildren("p", "dispatched", "1", count, 20))
			h.dispatch(dispatches, "p/0", 20)
			h.seconds(5)
			if got := fmt.Sprint(h.children("a/p")); got != "[0]" {
				t.Fatalf("%s run\n%s", got, strings.Join(h.log, "\n"))
			}
			h.submit(t.Context(), wholeOf("b", 1, "80"))
			h.seconds(20)
			if got := h.running(); got != "b/j1" {
				t.Fatalf("%d: %s run\n%s", count, got, strings.Join(h.log, "\n"))
			}
			h.stop(h.jobs["b/j1"])
			h.seconds(20)
			if got := h.running(); got != "a/p/0" || h.started != 2*count+1 {
				t.Errorf("%d: %s run, %d were started\n%s", count, got, h.started, strings.Join(h.log, "\n"))
			}
		})
	}
}

// What was begun of a child by a leader that is gone is brought to its end by the next one: it runs
// alone, or waits alone.
func TestAChildIsLetGoAcrossLeaders(t *testing.T) {
	for _, evicted := range []bool{false, true} {
		for after := range 3 {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 1, 1, modelConfig)
				h.submit(t.Context(), withChildren("p", "dispatched", "1", 1, 20))
				interrupt := func() {
					h.interrupted = func() bool { after--; return after < 0 }
				}
				if !evicted {
					interrupt()
				}
				h.dispatch(dispatches, "p/0", 20)
				h.seconds(5)
				if evicted {
					interrupt()
					h.submit(t.Context(), wholeOf("b", 1, "80"))
					h.seconds(3)
				}
				h.interrupted = nil
				h.lead(t.Context())
				h.seconds(60)
				j, got := h.jobs["a/p/0"].job, h.running()
				counts := [2]int{*j.LookupTaskGroup("g").Count, *j.LookupTaskGroup(admit.HoldGroup).Count}
				if got == "a/p/0" && counts != [2]int{1, 0} || got == "b/j1" && counts != [2]int{0, 1} || got == "" || got == "b/j1" && !evicted {
					t.Errorf("evicted: %v; %s run, and %d start and wait of the child\n%s", evicted, got, counts, strings.Join(h.log, "\n"))
				}
			})
		}
	}
}

// What Nomad does not start of a child goes back as one, and is tried again.
func TestAChildThatNomadRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 1, 1, modelConfig)
		h.submit(t.Context(), withChildren("p", "dispatched", "1", 1, 20))
		h.refuses = func(j *modelJob, _ *api.Node) string {
			return map[bool]string{true: portTaken}[j.key.ID == "p/0"]
		}
		h.dispatch(dispatches, "p/0", 20)
		h.seconds(20)
		j := h.jobs["a/p/0"].job
		if *j.LookupTaskGroup("g").Count != 0 || *j.LookupTaskGroup(admit.HoldGroup).Count != 1 {
			t.Errorf("it does not wait\n%s", strings.Join(h.log, "\n"))
		}
		h.refuses = nil
		h.seconds(120)
		if got := h.running(); got != "a/p/0" {
			t.Errorf("%q run\n%s", got, strings.Join(h.log, "\n"))
		}
	})
}

// A parent that an earlier release registered is registered anew, and so is one that someone scaled.
func TestAParentIsBroughtUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 1, 1, modelConfig)
		h.submit(t.Context(), withChildren("p", "dispatched", "1", 2, 20))
		p := h.jobs["a/p"]
		h.seconds(5)
		p.job.LookupTaskGroup("g").Count = new(int)
		*p.job.LookupTaskGroup("g").Count = 2
		p.job.TaskGroups = p.job.TaskGroups[:1]
		p.job.TaskGroups[0].Constraints = []*api.Constraint{{LTarget: "${node.unique.id}", Operand: "!=", RTarget: "nomad-gpu"}}
		raw, err := json.Marshal(p.job)
		if err != nil {
			t.Fatal(err)
		}
		h.register(raw)
		h.seconds(10)
		if p = h.jobs["a/p"]; !scaled(p) || *p.job.TaskGroups[0].Count != 0 || p.job.LookupTaskGroup(admit.HoldGroup).Meta["counts"] != `{"g":2}` {
			t.Errorf("it is registered with %v", constraintsOf(p.job.TaskGroups[0]))
		}
		h.believed.View(func(r *state.Reader) {
			if drifted := r.Queue.Recorded(state.Drifted); len(drifted) > 0 {
				t.Errorf("%v are not as they were recorded", drifted)
			}
		})
	})
}
