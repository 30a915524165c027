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

// parameterized is a job of whole GPUs whose children are dispatched.
// parameterized is a job of namespace c that came around the service, as are those dispatched of it.
func parameterized(id string) json.RawMessage {
	device := `"Resources": {"Devices": [{"Name": "nvidia/slice", "Count": 16}], `
	of := strings.Replace(strings.Replace(string(whole("c", 0)), `"Meta": {"gpu": "1"}, "Resources": {`, device, 1), `"Priority"`, `"ParameterizedJob": {}, "Priority"`, 1)
	return json.RawMessage(strings.ReplaceAll(of, "j0", id))
}

func wholeOf(namespace string, i int, priority string) json.RawMessage {
	return json.RawMessage(strings.Replace(string(whole(namespace, i)), `"Priority": 50`, `"Priority": `+priority, 1))
}

// Nomad does not let a dispatched job be changed. So it is no victim, for it could not be
// kept off the room that it gave; it is not kept off a node, not held, and not made to
// prefer one; and where it is in the way of others, they are not evicted in vain.
func TestDispatchedJobsAreLeftAsTheyAre(t *testing.T) {
	const quick = "preemption {\n min_run_time = \"0s\"\n}\n"
	parent := nomad.JobKey{Namespace: "c", ID: "parent"}
	for name, tc := range map[string]struct {
		events func(t *testing.T, h *modelRun)
		want   string // who runs in the end
	}{
		"a victim stands beside one that was dispatched": {func(t *testing.T, h *modelRun) {
			h.dispatch(parent, "parent/dispatch-1", 10)
			h.submit(t.Context(), wholeOf("a", 1, "20"))
			h.second(t.Context())
			h.submit(t.Context(), wholeOf("b", 2, "80"))
		}, "b/j2 c/parent/dispatch-1"},
		"only dispatched ones": {func(t *testing.T, h *modelRun) {
			h.dispatch(parent, "parent/dispatch-1", 10)
			h.dispatch(parent, "parent/dispatch-2", 10)
			h.second(t.Context())
			h.submit(t.Context(), wholeOf("b", 2, "80"))
		}, "c/parent/dispatch-1 c/parent/dispatch-2"},
		"a dispatched one waits, of a higher priority": {func(t *testing.T, h *modelRun) {
			h.submit(t.Context(), wholeOf("a", 1, "20"))
			h.submit(t.Context(), wholeOf("a", 2, "30"))
			h.second(t.Context())
			h.dispatch(parent, "parent/dispatch-1", 80)
		}, "a/j1 a/j2"},
		"a dispatched one would take the room": {func(t *testing.T, h *modelRun) {
			h.submit(t.Context(), wholeOf("a", 1, "20"))
			h.submit(t.Context(), wholeOf("a", 2, "90"))
			h.second(t.Context())
			h.submit(t.Context(), wholeOf("b", 3, "60"))
			h.dispatch(parent, "parent/dispatch-1", 70)
		}, "a/j2 c/parent/dispatch-1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 1, 2, quick)
				h.register(parameterized("parent"))
				tc.events(t, h)
				for range 600 {
					h.second(t.Context())
				}
				if got := h.running(); got != tc.want {
					t.Errorf("%q run, want %q\n%s", got, tc.want, strings.Join(h.log, "\n"))
				}
				if h.unchangeable > 0 {
					t.Errorf("it was tried %d times to change what was dispatched", h.unchangeable)
				}
				h.believed.View(func(r *state.Reader) {
					for _, key := range r.Queue.Recorded(state.Drifted) {
						if r.Cluster.Blocked(key).Allocs("g") > 0 {
							t.Errorf("nothing is recorded about %s, which waits", key)
						}
					}
				})
			})
		})
	}
}

// What is dispatched can bear a hold, of its parent, that is never taken away: it could not be
// let go, so nothing goes for it.
func TestNothingGoesForADispatchedJobThatIsHeld(t *testing.T) {
	for _, count := range []string{"1", "2"} {
		t.Run(count, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 2, modelConfig)
				h.submit(t.Context(), wholeOf("a", 1, "10"))
				h.submit(t.Context(), wholeOf("a", 2, "20"))
				h.seconds(5)
				held := strings.Replace(string(wholeOf("a", 9, "80")), `"Priority"`, `"ParameterizedJob": {}, "Priority"`, 1)
				held = strings.Replace(held, `"Count": 1`, `"Count": `+count+`, "Constraints": [{"LTarget": "nomad-gpu: waits for quota: queue a", "Operand": "=", "RTarget": "admitted"}]`, 1)
				h.register(json.RawMessage(held))
				h.dispatch(nomad.JobKey{Namespace: "a", ID: "j9"}, "j9/dispatch-1", 80)
				before := h.started
				h.seconds(60)
				if got := h.running(); got != "a/j1 a/j2" || h.started != before {
					t.Errorf("%q run, and %d were started; want both that ran\n%s", got, h.started-before, strings.Join(h.log, "\n"))
				}
			})
		})
	}
}
