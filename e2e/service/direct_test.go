// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

const strict = `
preemption {
  min_run_time     = "0s"
  hold_direct_jobs = true
}
queue "q" {
  gpus       = 1
  borrow     = false
  namespaces = ["default"]
}
`

// TestDirectJobs submits two jobs around the service that are more than their
// queue may hold together: one is brought back, and says why it waits. When the
// service is gone, its owner lets it go by hand.
func TestDirectJobs(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	gpu := []*api.RequestedDevice{{Name: "nvidia/slice", Count: new(uint64)}}
	*gpu[0].Count = 14
	for id, priority := range map[string]int{"stays": 50, "goes": 20} {
		if err := submit(ctx, c.API, job{id: id, priority: priority, devices: gpu}); err != nil {
			t.Fatal(err)
		}
		runs(ctx, t, c.API, id, 1)
	}
	stays := allocs(ctx, t, c.API, "default", "stays")[0].ID
	r := serve(ctx, t, c, strict)
	until(ctx, t, "bring one back", time.Minute, func() (bool, string) {
		j, _, err := c.API.Jobs().Info("goes", nil)
		if err != nil {
			return false, err.Error()
		}
		why := constraints(j)
		return strings.Contains(why, "waits for quota: queue q holds 2 of at most 1 GPUs") && len(allocs(ctx, t, c.API, "default", "goes")) == 0, why
	})
	if live := allocs(ctx, t, c.API, "default", "stays"); len(live) != 1 || live[0].ID != stays {
		t.Error("the one with the higher priority did not stay as it was")
	}
	var picture struct {
		Queues []struct {
			Used   int64 `json:"used_milli"`
			Direct int64 `json:"direct_milli"`
		}
		Pending []struct{ Reason string }
		Events  []struct{ Kind, Text string }
	}
	until(ctx, t, "show it", 20*time.Second, func() (bool, string) {
		r.call(ctx, t, "GET", "/api/v1/gpu/cluster", "", &picture)
		return len(picture.Queues) == 1 && picture.Queues[0].Direct == 1000 && len(picture.Pending) == 1 && len(picture.Events) == 1, fmt.Sprintf("%+v", picture)
	})
	if e := picture.Events[0]; e.Kind != "hold" || !strings.Contains(e.Text, "job default/goes, which came around the service") {
		t.Errorf("event %+v", e)
	}

	r.kill(syscall.SIGKILL)
	j, _, err := c.API.Jobs().Info("goes", nil)
	if err != nil {
		t.Fatal(err)
	}
	g := j.TaskGroups[0]
	g.Constraints = slices.DeleteFunc(g.Constraints, func(x *api.Constraint) bool { return strings.HasPrefix(x.LTarget, "nomad-gpu: waits") })
	if _, _, err := c.API.Jobs().Register(j, nil); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "goes", 1)
	doubleBooked(ctx, t, c.API)
}

// TestASystemJobGrowsWithTheCluster has nodes join while a system job runs: Nomad
// starts it there, and the service stops what its queue cannot pay for. When the
// queue may hold more, it starts there again.
func TestASystemJobGrowsWithTheCluster(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 3)
	eligible := func(yes bool, nodes ...int) {
		for _, i := range nodes {
			if _, err := c.API.Nodes().ToggleEligibility(c.Nodes[i].ID, yes, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	eligible(false, 1, 2)
	r := serve(ctx, t, c, strict)
	other := job{id: "other", priority: 90, meta: map[string]string{"gpu": "1G"}}
	admitted(ctx, t, r, other)
	agent := job{id: "agent", kind: "system", meta: map[string]string{"gpu": "6G"}} // 6 of 14 slices
	admitted(ctx, t, r, agent)
	runs(ctx, t, c.API, "agent", 1)
	eligible(true, 1, 2)
	until(ctx, t, "hold it to what its queue pays for", time.Minute, func() (bool, string) {
		j, _, err := c.API.Jobs().Info("agent", nil)
		if err != nil {
			return false, err.Error()
		}
		why := constraints(j)
		return strings.Contains(why, "set_contains_any") && len(allocs(ctx, t, c.API, "default", "agent")) == 2, fmt.Sprintf("%s; %d run", why, len(allocs(ctx, t, c.API, "default", "agent")))
	})
	runs(ctx, t, c.API, "agent", 2)
	admitted(ctx, t, r, agent) // again, unchanged
	runs(ctx, t, c.API, "agent", 2)
	if live := allocs(ctx, t, c.API, "default", "other"); len(live) != 1 {
		t.Errorf("other work of the queue has %d allocs", len(live))
	}
	for _, id := range []string{"agent", "other"} {
		for _, a := range allocs(ctx, t, c.API, "default", id) {
			if a.ClientStatus != "running" {
				t.Errorf("job %s: an alloc is %s", id, a.ClientStatus)
			}
		}
	}
	r.kill(syscall.SIGTERM)
	serve(ctx, t, c, strings.Replace(strict, "gpus       = 1", "gpus       = 2", 1))
	runs(ctx, t, c.API, "agent", 3)
	doubleBooked(ctx, t, c.API)
}
