// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// pictureOf is what a replica shows of the cluster.
func pictureOf(ctx context.Context, t *testing.T, r *replica) (c view.Cluster) {
	t.Helper()
	if _, err := r.API.Raw().Query("/api/v1/gpu/cluster", &c, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestFallbackToTheCPU has a job wait for its queue's only GPU, kills the replica that leads,
// and finds the job on the CPU in time: told so, with nothing held or charged, and not moved
// when the GPU comes free. Submitted again it gets the GPU.
func TestFallbackToTheCPU(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	const config = "queue \"small\" {\n gpus = 1\n borrow = false\n namespaces = [\"default\"]\n}"
	leader := serve(ctx, t, c, config)
	admitted(ctx, t, leader, job{id: "first", meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "first", 1)
	other := serve(ctx, t, c, config)
	waits := job{id: "waits", meta: map[string]string{"gpu": "4G", "gpu_fallback": "cpu", "gpu_fallback_after": "15s"}}
	began := time.Now()
	admitted(ctx, t, other, waits)
	leader.kill(syscall.SIGKILL)
	live := runs(ctx, t, c.API, "waits", 1)
	if took := time.Since(began); took < 15*time.Second {
		t.Errorf("it fell back after %s", took)
	}
	registered, _, err := c.API.Jobs().Info("waits", nil)
	if err != nil {
		t.Fatal(err)
	}
	task := registered.TaskGroups[0].Tasks[0]
	if len(task.Resources.Devices) != 0 || task.Env["GPU_FALLBACK"] != "cpu" || task.Meta["gpu_fallback_from"] != "4G" {
		t.Errorf("it is registered with devices %v, environment %v, meta %v", task.Resources.Devices, task.Env, task.Meta)
	}
	var picture view.Cluster
	until(ctx, t, "show it", time.Minute, func() (bool, string) {
		picture = pictureOf(ctx, t, other)
		return len(picture.OnCPU) == 1, "nothing is shown on the CPU"
	})
	if f := picture.OnCPU[0]; f.JobID != "waits" || f.Ask != "4G" || len(picture.Pending) != 0 {
		t.Errorf("people see %+v, and %d groups that wait", f, len(picture.Pending))
	}
	if q := picture.Queues[0]; q.UsedMilli != 1000 {
		t.Errorf("the queue uses %d milli, want the first job's 1000", q.UsedMilli)
	}
	if !strings.Contains(other.said(t), `"action":"fallback"`) {
		t.Error("the audit log does not say it")
	}

	if err := c.Stop(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, "free the GPU", time.Minute, func() (bool, string) {
		return pictureOf(ctx, t, other).Queues[0].UsedMilli == 0, "the queue uses it still"
	})
	if now := runs(ctx, t, c.API, "waits", 1)[0].ID; now != live[0].ID {
		t.Error("it was restarted when the GPU came free")
	}
	admitted(ctx, t, other, waits)
	until(ctx, t, "run on the GPU", 2*time.Minute, func() (bool, string) {
		now := pictureOf(ctx, t, other)
		return len(now.OnCPU) == 0 && now.Queues[0].UsedMilli > 0, "it is still on the CPU"
	})
	if again := runs(ctx, t, c.API, "waits", 1)[0]; again.ID == live[0].ID {
		t.Error("it was not replaced")
	}
	doubleBooked(ctx, t, c.API)
}
