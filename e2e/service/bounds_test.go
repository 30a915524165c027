// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// TestAQueueKeepsToItsNodes has a queue that may use one node of two: what finds no room
// there waits, though Nomad by itself would start it on the other; so does what came as
// plain device blocks, and what Nomad starts by itself.
func TestAQueueKeepsToItsNodes(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 2)
	mine := c.Nodes[0]
	r := serve(ctx, t, c, fmt.Sprintf(`
preemption {
  enabled = false
}
queue "one-node" {
  gpus       = 4
  namespaces = ["default"]
  constraint {
    attribute = "node.unique.id"
    value     = %q
  }
}
`, mine.ID))
	slices := func(n uint64) []*api.RequestedDevice {
		return []*api.RequestedDevice{{Name: "nvidia/slice", Count: &n}}
	}
	jobs := []job{
		{id: "first", meta: map[string]string{"gpu": "1"}}, {id: "second", devices: slices(14)},
		{id: "third", meta: map[string]string{"gpu": "1"}}, {id: "fourth", devices: slices(12)}, {id: "agent", kind: "system", meta: map[string]string{"gpu": "1G"}},
	}
	for _, j := range jobs[:2] {
		admitted(ctx, t, r, j)
		runs(ctx, t, c.API, j.id, 1)
	}
	for _, j := range jobs[2:] {
		admitted(ctx, t, r, j)
		until(ctx, t, "wait for room on its node", 20*time.Second, func() (bool, string) {
			evals, _, err := c.API.Jobs().Evaluations(j.id, nil)
			for _, e := range evals {
				if e.Status == "blocked" || j.kind == "system" && e.Status == "complete" {
					return true, ""
				}
			}
			return false, fmt.Sprint(len(evals), err)
		})
		if live := allocs(ctx, t, c.API, "default", j.id); len(live) > 0 {
			t.Errorf("job %s runs on %s, which its queue may not use", j.id, live[0].NodeName)
		}
	}
	if err := c.Stop(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(ctx, "second"); err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs[2:4] {
		if live := runs(ctx, t, c.API, j.id, 1); live[0].NodeID != mine.ID {
			t.Errorf("job %s runs on %s", j.id, live[0].NodeName)
		}
	}
}
