// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// admitted submits jobs until the service knows the cluster and takes one.
func admitted(ctx context.Context, t *testing.T, r *replica, j job) time.Duration {
	t.Helper()
	return until(ctx, t, "admit job "+j.id, 60*time.Second, func() (bool, string) {
		if err := submit(ctx, r.API, j); err != nil {
			return false, err.Error()
		}
		return true, ""
	})
}

// held returns the node and the device group of a job's only alloc.
func held(ctx context.Context, t *testing.T, c *cluster.Cluster, a *api.AllocationListStub) (node, group string) {
	t.Helper()
	full, err := c.Alloc(ctx, a.ID)
	if err != nil {
		t.Fatal(err)
	}
	d := full.AllocatedResources.Tasks["sleep"].Devices
	if len(d) != 1 {
		t.Fatalf("alloc %s of job %s holds %d devices", a.ID, a.JobID, len(d))
	}
	return a.NodeID, d[0].Vendor + "/" + d[0].Type + "/" + d[0].Name
}

// wanted returns the node and the device group that the service chose.
func wanted(ctx context.Context, t *testing.T, c *cluster.Cluster, id string) (node, group string) {
	t.Helper()
	r := record(ctx, t, c.API, "default/"+id)
	if r == nil {
		t.Fatalf("no decision about job %s is recorded", id)
	}
	choices, _ := r["groups"].(map[string]any)["g"].(map[string]any)["shown"].(map[string]any)["choices"].([]any)
	if len(choices) != 1 {
		return "", ""
	}
	choice := choices[0].(map[string]any)
	node, _ = choice["node_id"].(string)
	group, _ = choice["groups"].([]any)[0].(string)
	return node, group
}

func TestAdmission(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 2)
	r := serve(ctx, t, c, "")
	first := job{id: "first", meta: map[string]string{"gpu": "4G"}}
	admitted(ctx, t, r, first)
	// A config that no node would take is refused before it waits for a GPU.
	err := submit(ctx, r.API, job{id: "odd", meta: map[string]string{"gpu": "1G"}, image: "Not An Image"})
	if err == nil || !strings.Contains(err.Error(), `task "probe": image: `) {
		t.Errorf("a job whose image cannot be one: %v", err)
	}
	live := runs(ctx, t, c.API, "first", 1)

	// An unchanged job changes nothing that runs, and neither does a larger
	// count to what ran before.
	admitted(ctx, t, r, first)
	first.count = 2
	admitted(ctx, t, r, first)
	if two := runs(ctx, t, c.API, "first", 2); !slices.ContainsFunc(two, func(a *api.AllocationListStub) bool { return a.ID == live[0].ID }) {
		t.Errorf("alloc %s was replaced", live[0].ID)
	}

	for _, row := range []struct {
		meta map[string]string
		runs bool
	}{
		{meta: map[string]string{"gpu": "0.5"}, runs: true},
		{meta: map[string]string{"gpu": "0.25(T4)"}, runs: true},
		{meta: map[string]string{"gpu": "2G,0.1"}, runs: true},
		{meta: map[string]string{"gpu": "1"}, runs: true},
		{meta: map[string]string{"gpu": "1(nvidia,T4)"}, runs: true},
		{meta: map[string]string{"gpu": "1(A100|T4)"}, runs: true},
		{meta: map[string]string{"gpu": "0.5(T4,!A100)"}, runs: true},
		{meta: map[string]string{"gpu": "2"}, runs: true},
		{meta: map[string]string{"gpu": "1G", "gpu_policy": "PACK", "gpu_sharing": "timeslice"}, runs: true},
		{meta: map[string]string{"gpu": "3"}},
		{meta: map[string]string{"gpu": "40G"}},
		{meta: map[string]string{"gpu": "1(A100)"}},
		{meta: map[string]string{"gpu": "1(!T4)"}},
		{meta: map[string]string{"gpu": "1.5"}},
		{meta: map[string]string{"gpu": "1G", "gpu_sharing": "mps"}},
		// Only MPS holds a limit, and these GPUs take turns.
		{meta: map[string]string{"gpu": "2G,0.1", "gpu_limit": "0.8"}},
	} {
		if err := c.Stop(ctx, "first"); err != nil {
			t.Fatal(err)
		}
		until(ctx, t, "end the first job", 20*time.Second, func() (bool, string) {
			return len(allocs(ctx, t, c.API, "default", "first")) == 0, "it has allocs"
		})
		err := submit(ctx, r.API, job{id: "form", meta: row.meta})
		if (err == nil) != row.runs {
			t.Errorf("%v: %v", row.meta, err)
		}
		if err != nil || !row.runs {
			t.Logf("%v: %v", row.meta, err)
			continue
		}
		runs(ctx, t, c.API, "form", 1)
		if err := c.Stop(ctx, "form"); err != nil {
			t.Fatal(err)
		}
	}
	doubleBooked(ctx, t, c.API)
}

// TestPlacedWhereChosen submits jobs one after the other and compares what the
// service chose with what Nomad did.
func TestPlacedWhereChosen(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 4)
	r := serve(ctx, t, c, "")
	admitted(ctx, t, r, job{id: "warm", meta: map[string]string{"gpu": "1G"}})
	if err := c.Stop(ctx, "warm"); err != nil {
		t.Fatal(err)
	}
	rounds := 2
	if os.Getenv("NOMAD_GPU_FULL") != "" {
		rounds = 10
	}
	const perRound = 50
	same, begin := 0, time.Now()
	asks := []string{"1G", "2G", "0.1", "1G,0.1", "3G"}
	for round := range rounds {
		for i := range perRound {
			id := fmt.Sprintf("j-%d-%d", round, i)
			if err := submit(ctx, r.API, job{id: id, kind: []string{"service", "batch"}[i%2], meta: map[string]string{"gpu": asks[i%len(asks)]}}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range perRound {
			id := fmt.Sprintf("j-%d-%d", round, i)
			wantNode, wantGroup := wanted(ctx, t, c, id)
			var live []*api.AllocationListStub
			until(ctx, t, "place job "+id, 30*time.Second, func() (bool, string) {
				live = allocs(ctx, t, c.API, "default", id)
				return len(live) == 1, fmt.Sprintf("%d allocs", len(live))
			})
			if node, group := held(ctx, t, c, live[0]); node == wantNode && group == wantGroup {
				same++
			} else {
				t.Logf("job %s: chosen %s on %s, is %s on %s", id, wantGroup, wantNode, group, node)
			}
		}
		doubleBooked(ctx, t, c.API)
		for i := range perRound {
			if err := c.Stop(ctx, fmt.Sprintf("j-%d-%d", round, i)); err != nil {
				t.Fatal(err)
			}
		}
		until(ctx, t, "end all jobs", 60*time.Second, func() (bool, string) {
			n := 0
			for i := range perRound {
				n += len(allocs(ctx, t, c.API, "default", fmt.Sprintf("j-%d-%d", round, i)))
			}
			return n == 0, fmt.Sprintf("%d allocs", n)
		})
	}
	t.Logf("%d of %d jobs are where they were meant to be (%s)", same, rounds*perRound, time.Since(begin).Round(time.Second))
	if same*100 < rounds*perRound*99 {
		t.Errorf("%d of %d jobs are where they were meant to be, want 99%%", same, rounds*perRound)
	}
}
