// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// completeOne has an alloc end by itself. What Nomad could not bring up to the version that is registered
// is of an earlier one: another is started for it.
func (m *model) completeOne(j *modelJob, a *modelAlloc) {
	if a.stub.JobVersion == *j.job.Version {
		j.done[a.stub.TaskGroup]++
	}
	m.allocs = slices.DeleteFunc(m.allocs, func(x *modelAlloc) bool { return x == a })
	m.past = append(m.past, a)
	m.index++
	j.last = time.Now()
	a.stub.ClientStatus, a.stub.ModifyIndex, a.stub.ModifyTime = "complete", m.index, time.Now().UnixNano()
	m.tell(nomad.Change{Alloc: nomad.NewAlloc(&a.stub)})
}

// complete has an alloc of a batch job end by itself, while others of the job run or wait.
func (m *model) complete(a *modelAlloc) {
	j := m.jobs[a.stub.Namespace+"/"+a.stub.JobID]
	m.completeOne(j, a)
	m.schedule()
}

// forgetPast forgets what has completed of a job that has ended as a whole.
func (m *model) forgetPast(j *modelJob) {
	m.past = slices.DeleteFunc(m.past, func(a *modelAlloc) bool { return a.stub.Namespace == j.key.Namespace && a.stub.JobID == j.key.ID })
}

// isDone counts the allocs of a job that have completed and are not run again, and says for how long
// such ran.
func (m *model) isDone(j *modelJob) (n int, took time.Duration) {
	for _, done := range j.done {
		n += done
	}
	runs := 0
	for _, a := range m.past {
		if a.stub.Namespace == j.key.Namespace && a.stub.JobID == j.key.ID {
			runs, took = runs+1, took+time.Duration(a.stub.ModifyTime-a.stub.CreateTime)
		}
	}
	return n, max(time.Second, time.Duration(n)*(took/time.Duration(max(1, runs))))
}

// repeatedFor reports whether Nomad runs again what has completed of a job, when that is registered so by
// the service, without need: nothing of it is to go away from anywhere, it was not held, and nothing of
// it has waited for as long as that takes.
func (m *model) repeatedFor(j *modelJob, raw json.RawMessage) bool {
	n, took := m.isDone(j)
	if n == 0 || j.ended {
		return false
	}
	next := &api.Job{}
	if err := json.Unmarshal(raw, next); err != nil {
		m.t.Fatal(err)
	}
	next.Canonicalize()
	for i, g := range j.job.TaskGroups {
		held := true
		for _, node := range m.nodes {
			if admitted(g, node) && !admitted(next.TaskGroups[i], node) {
				return false
			}
			held = held && !admitted(g, node)
		}
		if held {
			return false
		}
	}
	since := j.since
	if j.last.After(since) {
		since = j.last
	}
	return j.since.IsZero() || time.Since(since) < took
}

// completeAny has an alloc that has run for a short time complete, of a batch job with several.
func (h *modelRun) completeAny() {
	list := slices.DeleteFunc(slices.Clone(h.allocs), func(a *modelAlloc) bool {
		j := h.jobs[a.stub.Namespace+"/"+a.stub.JobID]
		if j == nil || *j.job.Type != "batch" || j.job.Dispatched || a.stopping > 0 || time.Now().UnixNano()-a.stub.CreateTime > int64(time.Minute) {
			return true
		}
		n, _ := h.isDone(j)
		g := j.job.TaskGroups[0]
		return n >= *g.Count-1 || g.Tasks[0].Meta["gpu_gang"] == "true"
	})
	if len(list) > 0 {
		a := list[h.part.IntN(len(list))]
		h.log = append(h.log, "  completes: "+a.stub.ID+" of "+a.stub.JobID)
		h.complete(a)
	}
}

// allocsOf are the allocs of a job that run.
func (h *modelRun) allocsOf(id string) (list []*modelAlloc) {
	for _, a := range h.allocs {
		if a.stub.JobID == id && a.stopping == 0 {
			list = append(list, a)
		}
	}
	return list
}

// sharded is a batch job with several allocs, which may fall back.
func (h *modelRun) sharded() json.RawMessage {
	meta := map[string]string{"gpu": []string{"1", "8G", "0.5", "4G"}[h.rng.IntN(4)]}
	if h.rng.IntN(4) == 0 {
		meta["gpu_fallback"], meta["gpu_fallback_after"] = "cpu", fmt.Sprintf("%ds", 20+h.rng.IntN(100))
	}
	text, err := json.Marshal(meta)
	if err != nil {
		h.t.Fatal(err)
	}
	id := fmt.Sprintf("j%d", h.rng.IntN(6))
	return json.RawMessage(fmt.Sprintf(`{"ID": %q, "Name": %q, "Namespace": %q, "Type": "batch", "Priority": %d, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": %d,
		"Tasks": [{"Name": "t", "Driver": "docker", "Meta": %s, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`,
		id, id, []string{"a", "b", "c"}[h.rng.IntN(3)], 10+20*h.rng.IntN(5), 2+h.rng.IntN(3), text))
}

// What Nomad runs again because its author changed a job is brought under its queue's limit, also by a
// leader that did not see what had completed.
func TestWhatRunsAgainIsBroughtBack(t *testing.T) {
	for name, lead := range map[string]bool{"the same leader": false, "another one": true} {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 4, 1, modelConfig)
			shards := func(priority int) json.RawMessage {
				return json.RawMessage(strings.Replace(string(slowJob("a", "shards", "0", 2, priority, "")), `"service"`, `"batch"`, 1))
			}
			h.submit(t.Context(), shards(50))
			h.seconds(60)
			h.complete(h.allocsOf("shards")[0])
			h.submit(t.Context(), slowJob("a", "other", "0", 1, 50, ""))
			h.seconds(60)
			if got := h.slices("a"); got != 32 {
				t.Fatalf("%s: queue a holds %d slices, and is to be full", name, got)
			}
			h.submit(t.Context(), shards(60)) // Nomad runs the first one again
			if got := h.slices("a"); got <= 32 {
				t.Fatalf("%s: queue a holds %d slices, and is to be above its limit", name, got)
			}
			if lead {
				h.lead(t.Context())
			}
			h.seconds(10)
			if got := h.slices("a"); got > 32 {
				t.Errorf("%s: queue a holds %d slices of 32\n%s", name, got, strings.Join(h.log, "\n"))
			}
		})
	}
}

// TestRandomHistoriesOfWhatCompletes drives batch jobs with several allocs, which complete one after the
// other, through submissions, evictions, kills, nodes that close, lost Variables and changes of leaders. No
// alloc that has completed is run again because the service registered its job, unless some of
// that job was to go or to be let go, or has waited for as long as that takes. What Nomad runs again since
// its author registered it is brought under its queue's bound. In the end nothing waits that could run.
// NOMAD_GPU_HISTORIES says how many, or which.
func TestRandomHistoriesOfWhatCompletes(t *testing.T) {
	var sum figures
	for _, seed := range histories(t, 30) {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 3, 2, modelConfig)
			h.rng, h.part = rand.New(rand.NewPCG(seed, 17)), rand.New(rand.NewPCG(seed, 13))
			for range 60 {
				j := h.any()
				kind := h.rng.IntN(12)
				if j == nil {
					kind = 0
				}
				switch {
				case kind < 3:
					raw := h.sharded()
					h.log = append(h.log, time.Now().Format("04:05")+"   submit "+string(raw))
					h.submit(t.Context(), raw)
				case kind < 8:
					h.completeAny()
				case kind == 8:
					h.stop(j)
				case kind == 9:
					h.finish(j)
				case kind == 10:
					h.lead(t.Context())
				default:
					h.rareEvent(j, []int{15, 16, 17, 18}[h.rng.IntN(4)])
				}
				for range 1 + h.rng.IntN(8) {
					h.second(t.Context())
				}
			}
			for _, n := range h.nodes {
				h.setEligibility(n, "eligible")
			}
			h.seconds(400)
			if h.longest > mostAbove+slowly {
				t.Errorf("seed %d: queue a was above its bound for %d seconds", seed, h.longest)
			}
			h.check(seed)
			if len(h.repeated) > 0 {
				t.Errorf("seed %d: what had completed was run again: %v\n%s", seed, h.repeated, strings.Join(h.log, "\n"))
			}
			h.count(&sum)
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%+v", sum)
}
