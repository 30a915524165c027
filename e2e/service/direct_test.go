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
