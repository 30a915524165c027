// SPDX-License-Identifier: MPL-2.0

package server

import (
	"strings"
	"testing"
)

// A batch job that waits for GPUs would stop a batch queue of Nomad's, so it does not get there.
func TestBatchQueuesOfNodePools(t *testing.T) {
	s := newService(t, nil)
	s.nomad.queues = map[string]string{
		"fifo":  `{"Type":"fifo","Workloads":[]}`,
		"fair":  `{"Type":"dynamic-priority","Workloads":[{"ID":"x"}]}`,
		"plain": `{"Type":"passthrough","Workloads":[]}`,
	}
	job := func(kind, pool string) string {
		return strings.Replace(gpuJob("a", oneGPU), `"ID":"a"`, `"ID":"a","Type":"`+kind+`","NodePool":"`+pool+`"`, 1)
	}
	for _, tc := range []struct {
		kind, pool string
		status     int
		says       string
	}{
		{"batch", "fifo", 422, `node pool "fifo" has a batch_queue of Nomad's (fifo)`},
		{"batch", "fair", 422, `node pool "fair" has a batch_queue of Nomad's (dynamic-priority)`},
		{"batch", "plain", 200, ""},
		{"batch", "before-2.1", 200, ""}, // Nomad has no such route
		{"batch", "default", 200, ""},
		{"service", "fifo", 200, ""},
	} {
		for _, path := range []string{"/v1/jobs", "/v1/job/a/plan"} {
			status, answer := s.do(t, "PUT", path, job(tc.kind, tc.pool))
			if status != tc.status || !strings.Contains(answer, tc.says) {
				t.Errorf("%s of a %s job in pool %q: %d %s, want %d %s", path, tc.kind, tc.pool, status, answer, tc.status, tc.says)
			}
		}
	}
	for _, c := range s.nomad.calls {
		if c.path == "/v1/queue/jobs" && strings.Contains(c.query, "node_pool=default") {
			t.Errorf("a built-in node pool was asked about: %s", c.query)
		}
	}
}
