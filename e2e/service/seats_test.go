// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// seats are a whole GPU and one whose tasks step aside for each other.
const seats = `
gpu {
  index = 0
  mode  = "whole"
}
gpu {
  index    = 1
  mode     = "shared"
  sharing  = "suspend"
  replicas = 4
}
suspend {
  host_memory  = "400GiB"
  min_turn     = "10m" // until then a task that holds nothing has the GPU alone
  idle         = "1h"
  max_priority = 90
}
health {
  measure = "300ms"
}
`

// twoH100 is a machine with a driver that can suspend programs.
func twoH100(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "h100.hcl")
	write(t, path, "machine \"m\" {\n  driver = \"580.82.07\"\n}\ngpu {\n  model = \"H100\"\n  count = 2\n}\n")
	return path
}

// seated waits until the tasks of allocs have seats in a state, of those on the only GPU with
// seats.
func seated(t *testing.T, c *cluster.Cluster, want map[string]gpu.SeatState) {
	t.Helper()
	dir, err := c.Nodes[0].State()
	if err != nil {
		t.Fatal(err)
	}
	until(t.Context(), t, fmt.Sprintf("have the seats %v", want), 3*time.Minute, func() (bool, string) {
		gpus, err := dir.GPUs()
		if err != nil {
			return false, err.Error()
		}
		found, said := 0, ""
		for _, g := range gpus {
			all, err := dir.Seats(g.UUID)
			if err != nil {
				continue
			}
			for _, s := range all.Seats {
				said += fmt.Sprintf("%s is %s (priority %d); ", s.LeaseID, s.State, s.Priority)
				for alloc, state := range want {
					if strings.HasPrefix(s.LeaseID, alloc) && s.State == state {
						found++
					}
				}
			}
		}
		return found == len(want), said
	})
}

// A job that would have had others evicted takes a free seat in their stead: what sits there
// steps aside and comes back, and no task is ended. The service says so.
func TestWorkStepsAsideRatherThanGo(t *testing.T) {
	t.Parallel()
	ctx, c := startNodes(t, cluster.NodeOptions{Topology: twoH100(t), GPUs: seats})
	r := serve(ctx, t, c, quick)
	admitted(ctx, t, r, job{id: "low", priority: 10, meta: map[string]string{"gpu": "1"}})
	low := runs(ctx, t, c.API, "low", 1)[0].ID
	admitted(ctx, t, r, job{id: "notebook", priority: 20, image: cluster.Image, meta: map[string]string{"gpu": "60G", "gpu_sharing": "suspend"}})
	notebook := runs(ctx, t, c.API, "notebook", 1)[0].ID
	seated(t, c, map[string]gpu.SeatState{notebook: gpu.SeatResident})

	admitted(ctx, t, r, job{id: "training", priority: 60, image: cluster.Image, meta: map[string]string{"gpu": "1"}})
	training := runs(ctx, t, c.API, "training", 1)[0].ID
	seated(t, c, map[string]gpu.SeatState{notebook: gpu.SeatSuspended, training: gpu.SeatResident})
	for id, alloc := range map[string]string{"low": low, "notebook": notebook} {
		if live := allocs(ctx, t, c.API, "default", id); len(live) != 1 || live[0].ID != alloc || live[0].ClientStatus != "running" {
			t.Errorf("job %s had to go: %+v", id, live)
		}
	}
	doubleBooked(ctx, t, c.API)
	var shown view.Cluster
	if _, err := r.API.Raw().Query("/api/v1/gpu/cluster", &shown, nil); err != nil {
		t.Fatal(err)
	}
	told := ""
	for _, e := range shown.Events {
		told += e.Kind + ": " + e.Text + "\n"
	}
	if !strings.Contains(told, fmt.Sprintf("suspend: default/notebook (seat priority 20, alloc %.8s) steps aside on node node-0: job default/training takes a free seat of priority 60 for 1; nothing is evicted", notebook)) || strings.Contains(told, "evict:") {
		t.Errorf("the events are\n%s", told)
	}
	if code, text, _ := scheduler(ctx, t, t.TempDir(), r.URL, "explain", "training"); code != 0 || !strings.Contains(text, "takes a free seat on node-0 (nvidia/shared/H100/") || !strings.Contains(text, `preemption.prefer is "suspend"`) {
		t.Errorf("explain: exit %d\n%s", code, text)
	}
	// Submitted again as it was, nothing changes.
	admitted(ctx, t, r, job{id: "training", priority: 60, image: cluster.Image, meta: map[string]string{"gpu": "1"}})
	if live := runs(ctx, t, c.API, "training", 1); live[0].ID != training {
		t.Error("job training was replaced")
	}
	if err := c.Stop(ctx, "training"); err != nil {
		t.Fatal(err)
	}
	seated(t, c, map[string]gpu.SeatState{notebook: gpu.SeatResident})
}
