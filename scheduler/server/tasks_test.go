// SPDX-License-Identifier: MPL-2.0

package server

import (
	"strings"
	"testing"
)

// A job whose tasks would fail on every node is refused with all mistakes, in a plan too, and
// Nomad does not get it; what some node may allow is left to the nodes.
func TestMistakesOfTasksAreToldBeforeTheyArePlaced(t *testing.T) {
	s := newService(t, nil)
	job := func(id, config string) string {
		return strings.Replace(gpuJob(id, oneGPU), `"Driver":"docker"`, `"Driver":"containerd","Config":`+config, 1)
	}
	odd := job("odd", `{"shm_size":"20GB","gpu":[{"compute":"50%"}],"imagee":"redis:7"}`)
	// To a validation Nomad answers 200, with the mistakes.
	for path, want := range map[string]int{"/v1/jobs": 422, "/v1/job/odd/plan": 422, "/v1/validate/job": 200} {
		status, answer := s.do(t, "PUT", path, odd)
		for _, says := range []string{"20GB", "gpu.compute", "imagee", "image: is missing"} {
			if status != want || !strings.Contains(answer, says) {
				t.Errorf("%s: %d %s, want %s", path, status, answer, says)
			}
		}
	}
	if status, answer := s.do(t, "PUT", "/v1/jobs", job("even", `{"image":"redis:7","privileged":true,"pids_limit":100000}`)); status != 200 {
		t.Errorf("a job without mistakes: %d %s", status, answer)
	}
	for _, c := range s.nomad.calls {
		if strings.Contains(c.body, `"ID":"odd"`) && c.path == "/v1/jobs" {
			t.Errorf("Nomad got the job: %s %s", c.path, c.body)
		}
	}
}
