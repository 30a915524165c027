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
