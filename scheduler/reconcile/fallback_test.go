// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/show"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// fallbackRun is a service of one machine with one GPU, which queue a pays for.
func fallbackRun(t *testing.T, gpus int) *modelRun {
	return newRun(t, 1, gpus, "preemption {\n enabled = false\n}\nqueue \"a\" {\n gpus = 4\n borrow = false\n namespaces = [\"a\"]\n}")
}

// patientJob is a job that falls back after a minute.
func patientJob(id, request string, count int, more string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID":%q,"Name":%q,"Namespace":"a","Type":"service","Priority":50,"Datacenters":["*"],"TaskGroups":[{"Name":"g","Count":%d,"Tasks":[
		{"Name":"t","Driver":"docker","Meta":{"gpu":%q,"gpu_fallback":"cpu","gpu_fallback_after":"60s"%s},"Resources":{"CPU":100,"MemoryMB":100}}]}]}`, id, id, count, request, more))
}

func (h *modelRun) seconds(n int) {
	for range n {
		h.second(h.t.Context())
	}
}

func (h *modelRun) shown() (c *view.Cluster) {
	var err error
	if h.believed.View(func(r *state.Reader) { c, err = show.Cluster(r) }); err != nil {
		h.t.Fatal(err)
	}
	return c
}

// TestAGroupFallsBackOnce: not before its time, also where the leader changes meanwhile; it
// then costs its queue nothing, stays where it is when a GPU comes free and the leader changes
// again, and is tried anew when it is submitted again.
func TestAGroupFallsBackOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fallbackRun(t, 1)
		ctx := t.Context()
		h.submit(ctx, patientJob("first", "1", 1, ""))
		h.seconds(2)
		h.submit(ctx, patientJob("waits", "8G", 2, ""))
		h.seconds(40)
		h.lead(ctx)
		h.seconds(15)
		if c := h.shown(); len(c.Pending) != 1 || len(c.OnCPU) != 0 {
			t.Fatalf("after 55 seconds %+v wait and %+v are on the CPU", c.Pending, c.OnCPU)
		}
		h.seconds(15)
		c := h.shown()
		if len(c.Pending) != 0 || len(c.OnCPU) != 1 || c.OnCPU[0].Ask != "8G" || h.running() != "a/first a/waits" || h.used("a") != 16 || c.Queues[0].UsedMilli != 1000 {
			t.Fatalf("after its time: %+v wait, %+v are on the CPU, %s run, %d slices are held, the queue uses %d", c.Pending, c.OnCPU, h.running(), h.used("a"), c.Queues[0].UsedMilli)
		}
		if d := c.Decisions[0]; d.JobID != "waits" || d.Outcome != view.OnCPU || c.Events[0].Kind != "fallback" {
			t.Errorf("it is told of as %+v and %+v", d, c.Events[0])
		}
		started := h.started
		h.stop(h.jobs["a/first"])
		h.seconds(120)
		h.lead(ctx)
		h.seconds(120)
		if c := h.shown(); h.started != started || len(c.OnCPU) != 1 {
			t.Errorf("a GPU came free: %d allocs were started, %+v are on the CPU", h.started-started, c.OnCPU)
		}
		h.submit(ctx, patientJob("waits", "8G", 2, ""))
		h.seconds(30)
		if c := h.shown(); len(c.OnCPU) != 0 || h.used("a") != 16 {
			t.Errorf("submitted again: %+v are on the CPU, %d slices are held", c.OnCPU, h.used("a"))
		}
	})
}

// TestNothingFallsBackInPart: neither a group of which something runs, nor a part of a gang.
func TestNothingFallsBackInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fallbackRun(t, 1)
		ctx := t.Context()
		h.submit(ctx, patientJob("part", "12G", 2, ""))
		h.seconds(200)
		if c := h.shown(); len(c.OnCPU) != 0 || h.used("a") != 12 {
			t.Errorf("of a group that runs in part %+v fell back", c.OnCPU)
		}
		gang := patientJob("gang", "4G", 2, `,"gpu_gang":"true"`)
		h.submit(ctx, gang)
		h.seconds(90)
		c := h.shown()
		allocs := 0
		for _, a := range h.allocs {
			if a.stub.JobID == "gang" {
				allocs++
			}
		}
		if len(c.OnCPU) != 1 || allocs != 2 || h.used("a") != 12 {
			t.Errorf("of a gang of 2 %d run, %+v are on the CPU, %d slices are held", allocs, c.OnCPU, h.used("a"))
		}
	})
}

// TestAFallbackThatWasRecordedOnly: the leader dies before Nomad hears of it, or Nomad refuses
// it. The next one finds the job waiting, and it falls back all the same.
func TestAFallbackThatWasRecordedOnly(t *testing.T) {
	for name, after := range map[string]func(h *modelRun, asks []admit.Ask, d []admit.Decision){
		"killed": func(h *modelRun, _ []admit.Ask, _ []admit.Decision) { h.lead(h.t.Context()) },
		"refused": func(h *modelRun, asks []admit.Ask, d []admit.Decision) {
			h.decider.Settle(h.t.Context(), asks, d, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := fallbackRun(t, 1)
				h.submit(t.Context(), patientJob("first", "1", 1, ""))
				h.seconds(2)
				h.submit(t.Context(), patientJob("waits", "8G", 1, ""))
				h.seconds(20)
				body, err := h.Read(t.Context(), h.jobs["a/waits"].key)
				if err != nil {
					t.Fatal(err)
				}
				j, err := admit.Read(body, admit.Query{Namespace: "a"})
				if err != nil {
					t.Fatal(err)
				}
				d, err := h.decider.Revise(t.Context(), j.Asks, decide.Revision{Group: "g", OnCPU: true})
				if err != nil || len(d) != 1 || !d[0].OnCPU {
					t.Fatal(errors.Join(err, fmt.Errorf("%+v", d)))
				}
				after(h, j.Asks, d)
				h.seconds(20)
				if h.running() != "a/first" {
					t.Errorf("%s run, before its time", h.running())
				}
				h.seconds(60)
				if c := h.shown(); len(c.OnCPU) != 1 || h.running() != "a/first a/waits" || h.used("a") != 16 {
					t.Errorf("%+v are on the CPU, %s run", c.OnCPU, h.running())
				}
			})
		})
	}
}

// A gang that runs on the CPU, and is reverted around the service to a version with GPUs for which
// there is room in part only, does not go on as two halves of different versions.
func TestAGangDoesNotRunInTwoVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 3, 1, "preemption {\n min_run_time = \"0s\"\n}\n")
		ctx := t.Context()
		h.submit(ctx, patientJob("gang", "1", 2, `,"gpu_gang":"true"`))
		h.seconds(5)
		gang := h.jobs["a/gang"]
		h.scale(gang, 4)
		scaled := gang.versions[len(gang.versions)-1]
		count := func() (gpus, cpus int) {
			for _, a := range h.allocs {
				switch {
				case a.stub.JobID != "gang" || a.stopping > 0:
				case len(a.group.Tasks[0].Resources.Devices) > 0:
					gpus++
				default:
					cpus++
				}
			}
			return gpus, cpus
		}
		h.seconds(300)
		if gpus, cpus := count(); gpus != 0 || cpus != 4 {
			t.Fatalf("%d run with GPUs and %d without, of four, with three GPUs\n%s", gpus, cpus, strings.Join(h.log, "\n"))
		}
		h.register(scaled)
		h.seconds(30)
		if gpus, cpus := count(); gpus == 0 || gpus+cpus != 4 {
			t.Fatalf("reverted, %d run with GPUs and %d without", gpus, cpus)
		}
		h.seconds(70)
		if gpus, cpus := count(); gpus > 0 && gpus+cpus > 0 {
			t.Errorf("%d run with GPUs and %d without still\n%s", gpus, cpus, strings.Join(h.log, "\n"))
		}
		h.seconds(200)
		if gpus, cpus := count(); gpus != 0 || cpus != 4 {
			t.Errorf("in the end %d run with GPUs and %d without\n%s", gpus, cpus, strings.Join(h.log, "\n"))
		}
	})
}

// A job that could never be paid for, came around the service, is held by it and has no record falls
// back under the next leader (random history 2718); one that waits with a record could have what it
// asks for, and is recorded again first.
func TestALostRecordDoesNotKeepAJobFromTheCPU(t *testing.T) {
	for name, row := range map[string]struct {
		count int
		onCPU bool // long before its time under the next leader
	}{
		"it could never be paid for": {3, true},
		"it has room by now":         {2, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 3, 2, modelConfig)
				ctx := t.Context()
				h.submit(ctx, service("keeps", "8G", 1, 0, 0))
				h.seconds(5)
				direct := strings.Replace(string(patientJob("direct", "1", row.count, "")), `"Resources":{`, `"Resources":{"Devices":[{"Name":"nvidia/slice","Count":16}],`, 1)
				h.register(json.RawMessage(strings.Replace(direct, `"gpu":"1",`, "", 1)))
				h.seconds(20)
				if hold := h.jobs["a/direct"].blocked; len(hold) == 0 {
					t.Fatal("it is not held")
				}
				clear(h.store.Items)
				h.stop(h.jobs["a/keeps"])
				h.lead(ctx)
				h.seconds(120)
				if c := h.shown(); (len(c.OnCPU) == 1) != row.onCPU || h.running() != "a/direct" {
					t.Errorf("%+v are on the CPU, %s run\n%s", c.OnCPU, h.running(), strings.Join(h.log, "\n"))
				}
			})
		})
	}
}
