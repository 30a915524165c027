// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// directOf is a whole GPU around the service.
func directOf(namespace string, i int, priority string) json.RawMessage {
	job := strings.Replace(string(wholeOf(namespace, i, priority)), `"gpu": "1"`, `"other": "1"`, 1)
	return json.RawMessage(strings.Replace(job, `"Resources": {`, `"Resources": {"Devices": [{"Name": "nvidia/slice", "Count": 16}], `, 1))
}

// A gang is held until all of the room that is made for it is there. Where another takes it, its
// promises end in their time, though it is tried again and again whether the gang can start.
func TestPromisesToAGangEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 1, 2, "preemption {\n min_run_time = \"0s\"\n}\n")
		ctx := t.Context()
		h.submit(ctx, wholeOf("c", 1, "10"))
		h.submit(ctx, wholeOf("c", 2, "10"))
		h.seconds(5)
		gang := strings.Replace(string(gangJob("gang", 2, 50)), `"gpu_gang"`, `"gpu_fallback": "cpu", "gpu_fallback_after": "30s", "gpu_gang"`, 1)
		h.submit(ctx, json.RawMessage(gang))
		h.seconds(3)
		h.register(directOf("b", 9, "90")) // it starts as soon as there is room
		promised := func() (n int) {
			h.believed.View(func(r *state.Reader) { n = r.Capacity.Assumed(nomad.JobKey{Namespace: "c", ID: "gang"}, "g") })
			return n
		}
		if h.seconds(10); promised() != 2 || !strings.Contains(h.running(), "b/j9") {
			t.Fatalf("the gang is promised room for %d, and %s run\n%s", promised(), h.running(), strings.Join(h.log, "\n"))
		}
		h.seconds(int(state.Unplaced.Seconds()))
		if h.seconds(5); promised() != 0 || !strings.Contains(h.running(), "c/gang") || len(h.jobs["c/gang"].job.TaskGroups[0].Tasks[0].Resources.Devices) > 0 {
			t.Errorf("after its time the gang is promised room for %d, and %s run\n%s", promised(), h.running(), strings.Join(h.log, "\n"))
		}
	})
}

// Where others take the room of a gang again and again, work is evicted for it less and less often.
func TestRoomIsNotMadeForAGangForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 2, 1, "preemption {\n min_run_time = \"0s\"\n max_per_job = 1000\n max_per_queue = 1000\n}\n")
		h.submit(t.Context(), wholeOf("c", 1, "10"))
		h.submit(t.Context(), wholeOf("c", 2, "10"))
		h.submit(t.Context(), gangJob("gang", 2, 50))
		for i := range 4 * 3600 {
			if h.second(t.Context()); len(h.allocs) < 2 {
				h.register(directOf("b", i, "10")) // nothing keeps it off the room
			}
		}
		evicted := strings.Count(strings.Join(h.log, "\n"), "evict: ")
		if evicted < 4 || evicted > 2*14 {
			t.Errorf("%d evictions within four hours\n%s", evicted, strings.Join(h.log, "\n"))
		}
		var note string
		h.believed.View(func(r *state.Reader) {
			g := r.Queue.Record(nomad.JobKey{Namespace: "c", ID: "gang"}).Groups["g"]
			note = g.InVain()
		})
		if !strings.Contains(note, "and others took it; not again before") {
			t.Errorf("people are told %q", note)
		}
	})
}
