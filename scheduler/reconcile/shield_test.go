// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// What a team has evicted for its own jobs keeps no other team from taking back what it borrowed: else
// a job that goes for others of its team a few times would be safe for an hour.
func TestAQueuesOwnEvictionsAreNoShield(t *testing.T) {
	const queues = "queue \"a\" {\n gpus = 1\n namespaces = [\"a\"]\n}\nqueue \"b\" {\n gpus = 1\n namespaces = [\"b\"]\n}\n"
	for _, budget := range []string{"max_per_job = 2", "max_per_queue = 4"} {
		t.Run(budget, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 1, 2, "preemption {\n min_run_time = \"0s\"\n "+budget+"\n}\n"+queues)
				h.submit(t.Context(), whole("a", 1))
				h.submit(t.Context(), whole("a", 2))
				h.seconds(5)
				for i := range 2 {
					for k := range 2 {
						urgent := strings.NewReplacer(`"Priority": 50`, `"Priority": 90`, `"j1"`, fmt.Sprintf(`"urgent%d-%d"`, i, k)).Replace(string(whole("a", 1)))
						h.submit(t.Context(), json.RawMessage(urgent))
					}
					h.seconds(20)
					for k := range 2 {
						h.stop(h.jobs[fmt.Sprintf("a/urgent%d-%d", i, k)])
					}
					h.seconds(20)
				}
				if got := h.running(); got != "a/j1 a/j2" || strings.Count(strings.Join(h.log, "\n"), " evict: ") != 4 {
					t.Fatalf("%s run\n%s", got, strings.Join(h.log, "\n"))
				}
				h.lead(t.Context()) // the next leader knows of it
				urgent := strings.NewReplacer(`"Priority": 50`, `"Priority": 90`, `"j1"`, `"more"`).Replace(string(whole("a", 1)))
				h.submit(t.Context(), json.RawMessage(urgent)) // which they bear no more
				h.seconds(20)
				if got := h.running(); got != "a/j1 a/j2" {
					t.Fatalf("%s run\n%s", got, strings.Join(h.log, "\n"))
				}
				h.submit(t.Context(), whole("b", 3))
				h.seconds(90)
				if got := h.running(); !strings.Contains(got, "b/j3") {
					t.Errorf("%s run\n%s", got, strings.Join(h.log, "\n"))
				}
			})
		})
	}
}
