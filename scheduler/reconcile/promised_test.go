// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"slices"
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
			h.believed.View(func(r *state.Reader) { n = r.Assumed(nomad.JobKey{Namespace: "c", ID: "gang"}, "g") })
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

// What is held until all of its room is there gets it: neither what waits with a lower priority
// nor one of the victims, each of which only had to leave its own node, starts in it meanwhile.
func TestNothingStartsInTheRoomOfAGang(t *testing.T) {
	for name, row := range map[string]struct {
		waits []json.RawMessage // for room, with a lower priority
		gang  json.RawMessage
		quota string
	}{
		"victims":                      {nil, gangJob("gang", 2, 50), ""},
		"what waits":                   {[]json.RawMessage{wholeOf("c", 3, "10"), wholeOf("c", 4, "10")}, gangJob("gang", 2, 50), ""},
		"a group that waits for quota": {[]json.RawMessage{wholeOf("c", 3, "10")}, severalOf("a", 9, 2, "50", alone), "queue \"a\" {\n gpus = 2\n borrow = false\n namespaces = [\"a\"]\n}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 1, "preemption {\n min_run_time = \"0s\"\n}\n"+row.quota)
				ctx := t.Context()
				first := "c"
				if row.quota != "" {
					first = "a"
				}
				h.submit(ctx, wholeOf(first, 1, "10"))
				h.submit(ctx, wholeOf("c", 2, "10"))
				for _, job := range row.waits {
					h.submit(ctx, job)
				}
				h.seconds(5)
				h.submit(ctx, row.gang)
				h.seconds(30)
				said := strings.Join(h.log, "\n")
				if runs := h.running(); runs != "c/gang" && runs != "a/j9" || strings.Count(said, "evict: ") != 2 {
					t.Errorf("%s run\n%s", runs, said)
				}
				h.seconds(200)
				for name, j := range h.jobs {
					if nodes := constraintsOf(j.job.TaskGroups[0]); strings.Contains(strings.Join(nodes, " "), "node-") {
						t.Errorf("%s is kept off a node still: %v", name, nodes)
					}
				}
			})
		})
	}
}

// Room that is made for a gang is its own until the last victim has stopped, however long that
// takes each of them.
func TestAGangWaitsForItsLastVictim(t *testing.T) {
	for _, stops := range []map[string]int{{"j1": 2, "j2": 180}, {"j1": 170, "j2": 180}, {"j1": 180, "j2": 180}, {"j1": 5, "j2": 1200}} {
		t.Run(fmt.Sprint(stops), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 1, "preemption {\n min_run_time = \"0s\"\n}\n")
				h.stops = stops
				h.submit(t.Context(), wholeOf("c", 1, "10"))
				h.submit(t.Context(), wholeOf("c", 2, "10"))
				h.seconds(5)
				h.submit(t.Context(), gangJob("gang", 2, 50))
				h.seconds(stops["j2"] + 15)
				said := strings.Join(h.log, "\n")
				if runs := h.running(); runs != "c/gang" || strings.Count(said, "evict: ") != 2 {
					t.Errorf("%s run\n%s", runs, said)
				}
			})
		})
	}
}

// Room that is made for a gang is its own, also where another replica begins to lead meanwhile: no
// victim goes back to what is free of it already, and nothing that is submitted then gets it, unless
// it goes first.
func TestTheRoomOfAGangIsKept(t *testing.T) {
	for name, row := range map[string]struct {
		at        []int // seconds
		lead      bool  // another replica does from then on
		submitted string
		takesIt   bool
	}{
		"one leader":                {at: []int{10, 130, 295}, submitted: "10"},
		"another of its priority":   {at: []int{10}, submitted: "50"},
		"one that goes first":       {at: []int{10}, submitted: "60", takesIt: true},
		"another leader at once":    {at: []int{10}, lead: true, submitted: "10"},
		"another leader later":      {at: []int{150}, lead: true, submitted: "10"},
		"another leader at the end": {at: []int{290}, lead: true, submitted: "10"},
		"one leader after another":  {at: []int{10, 20, 30, 170, 180, 295}, lead: true, submitted: "10"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 1, "preemption {\n min_run_time = \"0s\"\n}\n")
				h.stops = map[string]int{"j1": 2, "j2": 300}
				ctx := t.Context()
				h.submit(ctx, wholeOf("c", 1, "10"))
				h.submit(ctx, wholeOf("c", 2, "10"))
				h.seconds(5)
				h.submit(ctx, gangJob("gang", 2, 50))
				h.seconds(3)
				taken := false
				for second := range 315 {
					h.seconds(1)
					if slices.Contains(row.at, second) {
						if row.lead {
							h.lead(ctx)
						}
						h.submit(ctx, wholeOf("c", 10+second, row.submitted))
					}
					runs := h.running()
					taken = taken || second > 3 && runs != "" && runs != "c/gang" && runs != "c/j2"
				}
				said := strings.Join(h.log, "\n")
				if taken != row.takesIt || !taken && (h.running() != "c/gang" || strings.Count(said, "evict: ") != 2) {
					t.Errorf("taken %v; %s run\n%s", taken, h.running(), said)
				}
			})
		})
	}
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
			g := r.Record(nomad.JobKey{Namespace: "c", ID: "gang"}).Groups["g"]
			note = g.InVain()
		})
		if !strings.Contains(note, "and others took it; not again before") {
			t.Errorf("people are told %q", note)
		}
	})
}
