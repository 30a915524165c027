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

// A job that is scaled around the service beyond what its queue may hold is brought back,
// a gang as a whole: where Nomad starts all of it at once, and where some of it finds room
// only later, when the queue was within its bound at first.
func TestAJobScaledAroundTheServiceIsBroughtBack(t *testing.T) {
	for name, row := range map[string]struct {
		gang        string
		later, full bool // some of it finds room later, or only some
	}{"one by one": {gang: "false"}, "a gang": {gang: "true"}, "one by one, later": {"false", true, false}, "a gang, later": {"true", true, false}, "only some": {"false", false, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 3, 2, modelConfig)
				h.submit(t.Context(), wholeOf("a", 1, "10"))
				if row.full {
					h.submit(t.Context(), json.RawMessage(strings.Replace(string(wholeOf("c", 3, "90")), `"Count": 1`, `"Count": 3`, 1)))
				}
				job := strings.Replace(string(wholeOf("a", 2, "10")), `"gpu": "1"`, `"gpu": "1", "gpu_gang": "`+row.gang+`"`, 1)
				h.submit(t.Context(), json.RawMessage(strings.Replace(job, `"batch"`, `"service"`, 1)))
				for range 5 {
					h.second(t.Context())
				}
				for _, n := range h.nodes {
					if row.later {
						h.setEligibility(n, "ineligible")
					}
				}
				h.scale(h.jobs["a/j2"], 3)
				for range 8 {
					h.second(t.Context())
				}
				for _, n := range h.nodes {
					h.setEligibility(n, "eligible")
				}
				for range 60 {
					h.second(t.Context())
				}
				if h.longest > mostAbove {
					h.believed.View(func(r *state.Reader) {
						key := nomad.JobKey{Namespace: "a", ID: "j2"}
						t.Errorf("queue a was above its bound for %d seconds; j2: direct %v, drifted %v, held as %+v", h.longest, r.Direct(key), r.Drifted(key), r.Record(key).Groups["g"].Decision.Hold)
					})
				}
			})
		})
	}
}
