// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/nomad/api"
)

// plainly is a service of one whole GPU, or several.
func plainly(id string, count, priority int, extra string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID": %q, "Name": %q, "Namespace": "c", "Type": "service", "Priority": %d, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": %d, %s
		"Tasks": [{"Name": "t", "Driver": "docker", "Meta": {"gpu": "1"}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`, id, id, priority, count, extra))
}

// evictions counts those that were carried out for a job, on a node or any.
func (h *modelRun) evictions(whom, node string) (n int) {
	for _, line := range h.log {
		if strings.Contains(line, "   evict: ") && strings.Contains(line, "job "+whom+" ") && strings.Contains(line, "node "+node) {
			n++
		}
	}
	return n
}

const noMinimum = "preemption {\n min_run_time = \"0s\"\n max_per_job = 1000\n max_per_queue = 1000\n}\n"

// portTaken is what Nomad says where a static port is taken, which the service does not see.
const portTaken = "network: reserved port collision http=8080"

// refuseOn has Nomad not start a job on the nodes of which no returns true.
func (h *modelRun) refuseOn(job string, no func(node string) bool) {
	h.refuses = func(j *modelJob, n *api.Node) string {
		if j.key.ID == job && no(n.ID) {
			return portTaken
		}
		return ""
	}
}

// What Nomad does not start where there is room goes back at once, with Nomad's words, and is tried again less and
// less often: in a large cluster on other nodes.
func TestAGroupThatNomadDoesNotStartGoesBack(t *testing.T) {
	for _, only := range []string{"node-7", "node-60", "node-120", "none"} {
		t.Run(only, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 150, 1, noMinimum)
				h.refuseOn("j", func(node string) bool { return node != only })
				h.submit(t.Context(), plainly("j", 1, 50, ""))
				held := func() bool {
					list := constraintsOf(h.jobs["c/j"].job.TaskGroups[0])
					return len(list) == 1 && strings.Contains(list[0], ": waits for room") && strings.Contains(list[0], portTaken)
				}
				for waits := 0; len(h.jobs["c/j"].blocked) > 0 && !held(); waits++ {
					if h.seconds(1); waits > 8 {
						t.Fatalf("it waits in Nomad: %v", constraintsOf(h.jobs["c/j"].job.TaskGroups[0]))
					}
				}
				h.seconds(3600)
				if runs := h.running() == "c/j"; runs == (only == "none") || !runs && !held() {
					t.Errorf("after an hour runs %q, blocked %v\n%s", h.running(), h.jobs["c/j"].blocked, strings.Join(h.log, "\n"))
				}
				if n := len(h.jobs["c/j"].versions); n > 16 {
					t.Errorf("it was registered %d times", n)
				}
			})
		})
	}
}

// The rest of a group that runs keeps to its own room where Nomad does not start another alloc of it.
func TestTheRestOfAGroupThatNomadDoesNotStartGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 2, 1, noMinimum)
		h.submit(t.Context(), plainly("busy", 1, 50, ""))
		h.seconds(5)
		h.submit(t.Context(), plainly("j", 2, 50, ""))
		h.seconds(5)
		h.refuseOn("j", func(string) bool { return true })
		h.stop(h.jobs["c/busy"])
		h.seconds(12)
		list := constraintsOf(h.jobs["c/j"].job.TaskGroups[0])
		if on := h.holds(h.jobs["c/j"]); on != 1 || !slices.ContainsFunc(list, func(c string) bool { return strings.Contains(c, "slots=1") && strings.Count(c, "node-") == 1 }) || len(h.waited) > 0 {
			t.Errorf("%d run, with %v\n%s", on, list, strings.Join(h.log, "\n"))
		}
		h.refuses = nil
		h.seconds(200)
		if on := h.holds(h.jobs["c/j"]); on != 2 {
			t.Errorf("%d run in the end", on)
		}
	})
}
