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

// What has completed is not run again for what its job has for the rest: not for the node that it was kept
// off, nor for running without GPUs. What waits gets that once it has waited for as long.
func TestWhatHasCompletedIsNotRunAgain(t *testing.T) {
	shards := func(id string, count, priority int, meta string) json.RawMessage {
		raw := strings.Replace(string(slowJob("c", id, "0", count, priority, "")), `"service"`, `"batch"`, 1)
		return json.RawMessage(strings.Replace(raw, `"gpu": "1"`, `"gpu": "1"`+meta, 1))
	}
	t.Run("it was kept off a node", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 4, 1, "preemption {\n min_run_time = \"0s\"\n}\n")
			h.submit(t.Context(), shards("shards", 4, 20, ""))
			h.seconds(60)
			h.stops = map[string]int{"shards": 10}
			h.submit(t.Context(), slowJob("c", "high", "0", 1, 90, onNode(0)))
			h.seconds(5)
			list := h.allocsOf("shards")
			if len(list) != 3 {
				t.Fatalf("nothing was evicted:\n%s", strings.Join(h.log, "\n"))
			}
			h.complete(list[0]) // and the one that was evicted goes on in its place
			h.seconds(600)
			j := h.jobs["c/shards"]
			if got := h.running(); got != "c/high c/shards" || len(h.allocsOf("shards")) != 3 || len(j.versions) != 2 || len(h.repeated) > 0 {
				t.Fatalf("%s run, %d shards, registered %d times, %v", got, len(h.allocsOf("shards")), len(j.versions), h.repeated)
			}
			// One of them is lost, and only the node that it was kept off has room for it.
			h.stop(h.jobs["c/high"])
			lost := h.allocsOf("shards")[0]
			h.setEligibility(h.node(lost.stub.NodeID), "ineligible")
			h.kill(lost)
			h.seconds(30)
			if n := len(h.allocsOf("shards")); n != 2 {
				t.Fatalf("%d shards run, registered %d times", n, len(j.versions))
			}
			h.seconds(60) // as long as the first one ran, and a little longer
			if n := len(h.allocsOf("shards")); n != 3 || len(j.versions) != 3 || len(h.repeated) > 0 {
				t.Errorf("%d shards run, registered %d times, %v\n%s", n, len(j.versions), h.repeated, strings.Join(h.log, "\n"))
			}
		})
	})
	t.Run("it may run without GPUs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 2, 1, "")
			h.submit(t.Context(), shards("shards", 2, 50, `, "gpu_fallback": "cpu", "gpu_fallback_after": "30s"`))
			h.seconds(300)
			list := h.allocsOf("shards")
			h.complete(list[0])
			for _, n := range h.nodes {
				h.setEligibility(n, "ineligible")
			}
			h.kill(list[1])
			h.seconds(250)
			devices := func() int { return len(h.jobs["c/shards"].job.TaskGroups[0].Tasks[0].Resources.Devices) }
			if devices() == 0 || len(h.repeated) > 0 {
				t.Fatalf("it fell back, and what had completed runs again: %v", h.repeated)
			}
			h.seconds(100)
			if devices() != 0 || len(h.repeated) > 0 {
				t.Errorf("it waits for GPUs still, or did not for long: %v", h.repeated)
			}
		})
	})
	t.Run("an earlier version of it still runs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 3, 1, "preemption {\n min_run_time = \"0s\"\n}\n")
			h.setEligibility(h.nodes[2], "ineligible")
			h.submit(t.Context(), shards("shards", 2, 20, ""))
			h.seconds(60)
			h.setEligibility(h.nodes[0], "ineligible") // the one there stays as it is
			h.submit(t.Context(), json.RawMessage(strings.Replace(string(shards("shards", 2, 20, "")), `"V": "0"`, `"V": "1"`, 1)))
			h.seconds(5)
			h.stops = map[string]int{"shards": 250}
			h.submit(t.Context(), slowJob("c", "high", "0", 1, 90, onNode(1)))
			h.seconds(5)
			h.setEligibility(h.nodes[2], "eligible") // the one that was evicted goes on there
			h.seconds(200)
			h.setEligibility(h.nodes[2], "ineligible")
			registered := len(h.jobs["c/shards"].versions)
			for _, a := range h.allocsOf("shards") {
				if a.stub.NodeID == "node-2" {
					h.complete(a)
				}
			}
			h.seconds(60)
			if got := h.running(); got != "c/high c/shards" {
				t.Fatalf("%s run\n%s", got, strings.Join(h.log, "\n"))
			}
			h.stop(h.jobs["c/high"])
			h.seconds(60)
			j := h.jobs["c/shards"]
			if n, _ := h.isDone(j); n != 1 || len(h.allocsOf("shards")) != 1 || j.blocked["g"] != 1 || len(j.versions) != registered {
				t.Fatalf("%d have completed, %d run, %v wait, registered %d times, run again: %v\n%s", n, len(h.allocsOf("shards")), j.blocked, len(j.versions), h.repeated, strings.Join(h.log, "\n"))
			}
			h.seconds(90)
			if n := len(h.allocsOf("shards")); n != 2 || len(j.versions) != registered+1 || len(h.repeated) > 0 {
				t.Errorf("%d run, registered %d times, run again: %v\n%s", n, len(j.versions), h.repeated, strings.Join(h.log, "\n"))
			}
		})
	})
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
