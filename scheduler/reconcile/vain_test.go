// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
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

// Where Nomad starts many groups on none of their candidates, they are registered again one by one.
func TestManyGroupsThatNomadDoesNotStartGetOtherCandidatesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 8
		h := newRun(t, 150, 1, noMinimum)
		h.refuses = func(*modelJob, *api.Node) string { return portTaken }
		for i := range many {
			h.submit(t.Context(), plainly(fmt.Sprintf("j%d", i), 1, 50, ""))
		}
		registered := func() (n int) {
			for _, j := range h.jobs {
				n += len(j.versions)
			}
			return n
		}
		for range 300 {
			before := registered()
			if h.seconds(1); registered() > before+1 {
				t.Errorf("%d were registered within a second", registered()-before)
			}
		}
		if n := registered(); n <= 2*many || n > 3*many {
			t.Errorf("in five minutes there were %d registrations of %d jobs", n, many)
		}
	})
}
