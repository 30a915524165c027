// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// How allocs of a group start.
const alone, asGang, elastic = "alone", "as a gang", "as a gang, of which one is enough"

// severalOf is a service of so many allocs of a whole GPU each.
func severalOf(namespace string, i, count int, priority, gang string) json.RawMessage {
	meta := map[string]string{alone: `"gpu": "1"`, asGang: `"gpu": "1", "gpu_gang": "true"`, elastic: `"gpu": "1", "gpu_gang": "true", "gpu_gang_min": "1"`}[gang]
	job := strings.Replace(string(wholeOf(namespace, i, priority)), `"Count": 1`, fmt.Sprintf(`"Count": %d`, count), 1)
	job = strings.Replace(job, `"gpu": "1"`, meta, 1)
	return json.RawMessage(strings.Replace(job, `"batch"`, `"service"`, 1))
}

// A group of several allocs that waits for its quota is let go as one: so all of it has to
// be made room for at once, in its queue and on the nodes.
func TestAGroupThatWaitsForQuotaGetsRoomAsOne(t *testing.T) {
	for name, row := range map[string]struct {
		before []json.RawMessage // queue a may hold two GPUs
		count  int
		runs   string
	}{
		"one that is lower goes for one":     {[]json.RawMessage{severalOf("a", 1, 2, "10", alone)}, 1, "a/j1 a/j9"},
		"two that are lower go for two":      {[]json.RawMessage{wholeOf("a", 1, "10"), wholeOf("a", 2, "20")}, 2, "a/j9"},
		"a group that is lower goes for two": {[]json.RawMessage{severalOf("a", 1, 2, "10", alone)}, 2, "a/j9"},
		"a gang that is lower goes for two":  {[]json.RawMessage{severalOf("a", 1, 2, "10", asGang)}, 2, "a/j9"},
		"one goes beside what is free":       {[]json.RawMessage{wholeOf("a", 1, "10")}, 2, "a/j9"},
		"one is as high as it":               {[]json.RawMessage{wholeOf("a", 1, "10"), wholeOf("a", 2, "80")}, 2, "a/j1 a/j2"},
	} {
		for _, gang := range []string{alone, asGang, elastic} {
			t.Run(fmt.Sprintf("%s, %s", name, gang), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newRun(t, 2, 2, modelConfig)
					for _, job := range row.before {
						h.submit(t.Context(), job)
					}
					h.seconds(5)
					h.submit(t.Context(), severalOf("a", 9, row.count, "80", gang))
					h.seconds(60)
					if got := h.running(); got != row.runs {
						t.Errorf("running: %s, want %s\n%s", got, row.runs, strings.Join(h.log, "\n"))
					}
					if h.longest > mostAbove {
						t.Errorf("queue a was above its bound for %d seconds", h.longest)
					}
					before := h.started
					h.seconds(120)
					if h.started != before {
						t.Errorf("%d allocs were started although nothing happened", h.started-before)
					}
				})
			})
		}
	}
}

// Regression: work was evicted for a group that waited for quota, and the group was not let go:
// another one that goes first waited for the same quota. Its room stayed empty for two minutes.
func TestNothingGoesForAGroupThatLeavesItsQuotaToAnother(t *testing.T) {
	halves := func(gang string) json.RawMessage {
		return json.RawMessage(strings.Replace(string(severalOf("a", 8, 2, "30", gang)), `"gpu": "1"`, `"gpu": "0.5"`, 1))
	}
	for name, later := range map[string]json.RawMessage{"one": wholeOf("a", 8, "30"), "several": halves(alone), "a gang": halves(asGang)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 2, 2, modelConfig)
				for _, job := range []json.RawMessage{wholeOf("a", 1, "70"), wholeOf("c", 2, "10"), wholeOf("c", 3, "10"), wholeOf("c", 4, "10")} {
					h.submit(t.Context(), job)
				}
				h.seconds(5)
				h.submit(t.Context(), severalOf("a", 9, 2, "70", alone)) // nothing may go for it
				h.submit(t.Context(), later)
				h.seconds(60)
				if got := h.running(); got != "a/j1 c/j2 c/j3 c/j4" || h.started != 4 {
					t.Errorf("running: %s, and %d allocs were started, want the first four\n%s", got, h.started, strings.Join(h.log, "\n"))
				}
			})
		})
	}
}

// Who goes for a group that waits for its quota waits for quota only where what it holds counts
// for a bound of that group. Work of other queues goes for the room alone, and may start elsewhere.
func TestWhatGoesForRoomAloneWaitsForNoQuota(t *testing.T) {
	const queues = `
preemption {
  min_run_time = "0s"
}
queue "org" {
  max_gpus = 2
}
queue "a" {
  parent     = "org"
  namespaces = ["a"]
}
queue "beside" {
  parent     = "org"
  namespaces = ["beside"]
}
queue "b" {
  gpus       = 1
  namespaces = ["b"]
}
`
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 1, 3, queues)
		h.submit(t.Context(), wholeOf("beside", 1, "10"))
		h.submit(t.Context(), wholeOf("b", 2, "10"))
		h.submit(t.Context(), wholeOf("c", 3, "20"))
		h.seconds(5)
		h.submit(t.Context(), severalOf("a", 9, 2, "80", alone))
		h.seconds(60)
		said := strings.Join(h.log, "\n")
		if got := h.running(); got != "a/j9 b/j2" || strings.Count(said, "c/j3 (priority 20") != 1 {
			t.Errorf("%s run, want a/j9 b/j2, and c/j3 gone once:\n%s", got, said)
		}
		for name, quota := range map[string]string{"beside/j1": "a job with a higher priority goes first in queue org", "c/j3": ""} {
			hold := strings.Join(constraintsOf(h.jobs[name].job.TaskGroups[0]), " ")
			if waits := strings.Contains(hold, "waits for quota"); waits != (quota != "") || !strings.Contains(hold, quota) {
				t.Errorf("%s bears %q, want %q", name, hold, quota)
			}
		}
		if strings.Contains(said, "release: group g of job c/j3") {
			t.Errorf("c/j3 waited for a quota:\n%s", said)
		}
	})
}
