// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// newRun is a service beside a model of Nomad.
func newRun(t *testing.T, machines, gpus int, text string) *modelRun {
	t.Helper()
	c, err := config.Parse("model.hcl", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	h := &modelRun{model: newModel(t, machines, gpus), rng: rand.New(rand.NewPCG(1, 7)), store: nomadtest.NewStore(), config: c}
	h.lead(t.Context())
	return h
}

// gangJob is a gang of whole GPUs.
func gangJob(id string, count, priority int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID": %q, "Name": %q, "Namespace": "c", "Type": "batch", "Priority": %d, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": %d,
		"Tasks": [{"Name": "t", "Driver": "docker", "Meta": {"gpu": "1", "gpu_gang": "true"}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`, id, id, priority, count))
}

// A gang that Nomad starts in part only, for a reason that the service does not see,
// goes back as one, and then rests longer each time: it would hold GPUs for nothing,
// again and again. No task is evicted for it any more; users are told what Nomad says.
func TestAGangThatNomadCannotStartRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 2, 2, "preemption {\n min_run_time = \"0s\"\n}\n")
		stuck := true
		h.refuses = func(j *modelJob, n *api.Node) string { // as a port that is taken
			if stuck && j.key.ID == "gang" && n.ID == "node-1" {
				return "network: reserved port collision http=8080"
			}
			return ""
		}
		h.submit(t.Context(), gangJob("gang", 3, 50))
		key := nomad.JobKey{Namespace: "c", ID: "gang"}
		for range 4 * 3600 {
			h.second(t.Context())
		}
		// Twice at once, then after 2, 4, 8, 16, and then every 30 minutes: 13 in 4 hours.
		if starts := h.started / 2; starts < 4 || starts > 14 {
			t.Errorf("it was started in part %d times within four hours\n%s", starts, strings.Join(h.log, "\n"))
		}
		var hold string
		h.believed.View(func(r *state.Reader) {
			if held := r.Record(key).Groups["g"].Decision.Hold; held != nil {
				hold = held.Sentence
			}
		})
		for _, want := range []string{"Nomad started 2 of its 3 allocs", "reserved port collision", "tried again at"} {
			if !strings.Contains(hold, want) {
				t.Errorf("it waits with %q, which does not say %q", hold, want)
			}
		}

		before := h.started
		h.submit(t.Context(), whole("a", 1)) // of the same priority: it takes what the gang leaves
		h.submit(t.Context(), json.RawMessage(strings.Replace(string(whole("a", 2)), `"Priority": 50`, `"Priority": 20`, 1)))
		for range 4 * 3600 {
			h.second(t.Context())
		}
		if n := h.started - before; n > 2 {
			t.Errorf("%d allocs were started beside the two that came: someone made way for a gang that cannot start\n%s", n-2, strings.Join(h.log, "\n"))
		}

		stuck = false
		h.stop(h.jobs["a/j1"])
		h.stop(h.jobs["a/j2"])
		h.submit(t.Context(), gangJob("gang", 3, 50)) // submitted again as it is: tried at once
		for range 10 {
			h.second(t.Context())
		}
		if used := h.used("c"); used != 3*16 {
			t.Errorf("submitted again, when it can start, it holds %d slices of 48: %v", used, h.jobs["c/gang"].blocked)
		}
		for range 300 {
			h.second(t.Context())
		}
		if used := h.used("c"); used != 3*16 {
			t.Errorf("it did not go on: %d slices", used)
		}
	})
}

// A gang that lost a node starts again as soon as there is room: it rests only when
// that comes to nothing.
func TestAGangThatLostANodeDoesNotRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 2, 2, "")
		h.submit(t.Context(), gangJob("gang", 3, 50))
		h.second(t.Context())
		node := h.nodes[1]
		turn := func(eligibility string) { h.setEligibility(node, eligibility) }
		for n := range 3 { // as often as it likes
			turn("ineligible")
			for _, a := range h.allocs {
				if a.stub.NodeID == node.ID {
					h.end(a)
					h.noteLost(a)
				}
			}
			for range 240 {
				h.second(t.Context())
			}
			if used := h.used("c"); used != 0 {
				t.Fatalf("%d slices are held by a gang of which a part runs", used)
			}
			turn("eligible")
			for range 10 {
				h.second(t.Context())
			}
			if used := h.used("c"); used != 3*16 {
				t.Fatalf("node back the %d. time: %d slices of 48\n%s", n+1, used, strings.Join(h.log, "\n"))
			}
			for range 2 * 3600 { // earlier attempts are forgotten
				h.second(t.Context())
			}
		}
	})
}

// Room that was made for a job and that Nomad does not start it in costs its victims
// their work: it is made once on each node, and people are told why.
func TestRoomIsNotMadeInVainForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 2, 2, "preemption {\n min_run_time = \"0s\"\n max_per_job = 1000\n max_per_queue = 1000\n}\n")
		h.refuses = func(j *modelJob, n *api.Node) string {
			if j.key.ID == "stuck" {
				return "network: reserved port collision http=8080"
			}
			return ""
		}
		for i := range 4 {
			h.submit(t.Context(), json.RawMessage(strings.Replace(string(whole("a", i)), `"Priority": 50`, `"Priority": 20`, 1)))
		}
		h.submit(t.Context(), json.RawMessage(strings.Replace(string(whole("b", 1)), `"j1", "Name"`, `"stuck", "Name"`, 1)))
		for range 4 * 3600 {
			h.second(t.Context())
		}
		evicted, note := 0, ""
		for _, line := range h.log {
			if strings.Contains(line, "evict") {
				evicted++
			}
		}
		h.believed.View(func(r *state.Reader) {
			g := r.Record(nomad.JobKey{Namespace: "b", ID: "stuck"}).Groups["g"]
			note = g.InVain()
		})
		if evicted != 2 { // once on each node
			t.Errorf("%d evictions within four hours\n%s", evicted, strings.Join(h.log, "\n"))
		}
		for _, want := range []string{"room was made for it", "reserved port collision", "not again before"} {
			if !strings.Contains(note, want) {
				t.Errorf("people are told %q, without %q", note, want)
			}
		}
	})
}
