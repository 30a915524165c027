// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// canaries is an update block by which every destructive change waits for its
// promotion, after so many canaries.
func canaries(n int) *api.UpdateStrategy {
	parallel, healthy, deadline, progress := 1, 100*time.Millisecond, time.Minute, 2*time.Minute
	return &api.UpdateStrategy{Canary: &n, MaxParallel: &parallel, MinHealthyTime: &healthy, HealthyDeadline: &deadline, ProgressDeadline: &progress}
}

// deployed waits until the newest deployment of a job has succeeded.
func deployed(t *testing.T, c *api.Client, id string) {
	t.Helper()
	until(t.Context(), t, "deploy job "+id, 40*time.Second, func() (bool, string) {
		d, _, err := c.Jobs().LatestDeployment(id, nil)
		if err != nil || d == nil {
			return false, fmt.Sprint(d, err)
		}
		return d.Status == "successful", d.Status + " " + d.StatusDescription
	})
}

// Regression: the change that keeps a victim off its node waited for the promotion
// of a canary, and Nomad restarted the version before it on the same node, every
// two minutes for ever.
func TestAVictimWithCanariesGivesWayOnce(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, quick)
	admitted(ctx, t, r, job{id: "full", priority: 70, meta: map[string]string{"gpu": "1"}})
	admitted(ctx, t, r, job{id: "low", priority: 20, meta: map[string]string{"gpu": "9G"}, update: canaries(1)})
	runs(ctx, t, c.API, "full", 1)
	runs(ctx, t, c.API, "low", 1)
	deployed(t, c.API, "low")
	if _, err := c.API.Jobs().TagVersion("low", 0, "golden", "", nil); err != nil {
		t.Fatal(err)
	}
	admitted(ctx, t, r, job{id: "high", priority: 60, meta: map[string]string{"gpu": "8G"}})
	runs(ctx, t, c.API, "high", 1)
	if live := allocs(ctx, t, c.API, "default", "low"); len(live) != 0 {
		t.Errorf("job low still has %d allocs", len(live))
	}
	if err := c.Stop(ctx, "high"); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "low", 1)
	until(ctx, t, "bring the canaries back", 20*time.Second, func() (bool, string) {
		j, _, err := c.API.Jobs().Info("low", nil)
		if err != nil {
			return false, err.Error()
		}
		n := *j.TaskGroups[0].Update.Canary
		return n == 1 && constraints(j) == "${node.unique.id} != nomad-gpu", fmt.Sprintf("%d canaries, %s", n, constraints(j))
	})
	versions, _, _, err := c.API.Jobs().Versions("low", false, nil)
	if err != nil || len(versions) < 3 {
		t.Fatalf("%d versions, %v", len(versions), err)
	}
	for _, v := range versions {
		if golden := v.VersionTag != nil; golden != (*v.Version == 0) {
			t.Errorf("version %d is tagged: %v; its author tagged version 0", *v.Version, golden)
		}
	}
	all, _, err := c.API.Jobs().Allocations("low", true, nil)
	if err != nil || len(all) != 2 {
		t.Errorf("job low had %d allocs, want one that gave way and one that came back; %v", len(all), err)
	}
	// The author's own change still waits for promotion.
	again := job{id: "low", priority: 20, meta: map[string]string{"gpu": "7G"}, update: canaries(1)}
	admitted(ctx, t, r, again)
	until(ctx, t, "start a canary", 30*time.Second, func() (bool, string) {
		d, _, err := c.API.Jobs().LatestDeployment("low", nil)
		if err != nil || d == nil {
			return false, fmt.Sprint(d, err)
		}
		return d.StatusDescription == "Deployment is running but requires manual promotion", d.StatusDescription
	})
	doubleBooked(ctx, t, c.API)
}

// Nomad brings back a version as it was registered, held or with a node left out.
func TestARevertedJobRuns(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, strict)
	admitted(ctx, t, r, job{id: "first", meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "first", 1)
	if err := submit(ctx, r.API, job{id: "second", meta: map[string]string{"gpu": "9G"}}); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, "hold the second", 20*time.Second, func() (bool, string) {
		j, _, err := c.API.Jobs().Info("second", nil)
		if err != nil {
			return false, err.Error()
		}
		return strings.Contains(constraints(j), "waits for"), constraints(j)
	})
	if err := c.Stop(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	before := runs(ctx, t, c.API, "second", 1)[0].ID
	if _, _, err := c.API.Jobs().Revert("second", 0, nil, nil, "", ""); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, "take the hold of the reverted version away", 40*time.Second, func() (bool, string) {
		j, _, err := c.API.Jobs().Info("second", nil)
		if err != nil {
			return false, err.Error()
		}
		return constraints(j) == "${node.unique.id} != nomad-gpu", constraints(j)
	})
	after := runs(ctx, t, c.API, "second", 1)[0].ID
	t.Logf("the alloc is the same: %v", before == after)
	doubleBooked(ctx, t, c.API)
}

// Canaries run beside what they are to replace. Where their queue cannot pay for both they
// wait, and the version that runs goes on; they start when it can, and replace what ran
// when they are promoted. scheduler/reconcile drives the same with a model of Nomad.
func TestCanariesWaitForTheirQueue(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, oneGPU)
	svc := job{id: "svc", meta: map[string]string{"gpu": "5G", "version": "1"}, update: canaries(1)}
	admitted(ctx, t, r, svc)
	first := runs(ctx, t, c.API, "svc", 1)[0].ID
	deployed(t, c.API, "svc")
	admitted(ctx, t, r, job{id: "beside", meta: map[string]string{"gpu": "5G"}})
	runs(ctx, t, c.API, "beside", 1)

	svc.meta = map[string]string{"gpu": "5G", "version": "2"} // that this starts a canary, only Nomad knows
	admitted(ctx, t, r, svc)
	until(ctx, t, "hold the canary", time.Minute, func() (bool, string) {
		j, _, err := c.API.Jobs().Info("svc", nil)
		if err != nil {
			return false, err.Error()
		}
		live := allocs(ctx, t, c.API, "default", "svc")
		return strings.Contains(constraints(j), "waits for quota: queue q holds") && len(live) == 1 && live[0].ID == first, fmt.Sprintf("%d allocs, %s", len(live), constraints(j))
	})
	if err := c.Stop(ctx, "beside"); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, "start the canary when there is quota for it", 2*time.Minute, func() (bool, string) {
		d, _, err := c.API.Jobs().LatestDeployment("svc", nil)
		if err != nil || d == nil {
			return false, fmt.Sprint(d, err)
		}
		g := d.TaskGroups["g"]
		return len(allocs(ctx, t, c.API, "default", "svc")) == 2 && g.HealthyAllocs == 1 && g.DesiredCanaries == 1, d.StatusDescription
	})
	d, _, err := c.API.Jobs().LatestDeployment("svc", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.API.Deployments().PromoteAll(d.ID, nil); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, "replace what ran", time.Minute, func() (bool, string) {
		live := allocs(ctx, t, c.API, "default", "svc")
		return len(live) == 1 && live[0].ID != first && live[0].ClientStatus == "running", fmt.Sprint(len(live))
	})
	// What its queue could never hold beside what runs is refused at once.
	svc.meta = map[string]string{"gpu": "10G"}
	if err := submit(ctx, r.API, svc); err == nil || !strings.Contains(err.Error(), "its canaries run beside what runs of it") {
		t.Errorf("canaries that never fit: %v", err)
	}
	doubleBooked(ctx, t, c.API)
}

// What Nomad itself starts beside canaries, on which the model of scheduler/reconcile rests.
func TestWhatNomadStartsBesideCanaries(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	evaluated := func(id string) {
		t.Helper()
		until(ctx, t, "evaluate", 20*time.Second, func() (bool, string) {
			e, _, err := c.API.Evaluations().Info(id, nil)
			if err != nil {
				return false, err.Error()
			}
			return e.Status == "complete", e.Status
		})
	}
	for name, row := range map[string]struct {
		count, next int
		held        bool // no node takes the new version
		stop        bool // one of the old version
		old, fresh  int
	}{
		"a higher count is for later":               {count: 1, next: 3, old: 1, fresh: 1},
		"and if the update waits":                   {count: 1, next: 3, held: true, old: 1},
		"what stops comes back beside the canary":   {count: 2, next: 2, stop: true, old: 2, fresh: 1},
		"what stops waits with the canary":          {count: 2, next: 2, held: true, stop: true, old: 1},
		"the last that stops comes back before one": {count: 1, next: 1, held: true, stop: true, old: 1},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(name, " ", "-")
			j := job{id: id, count: row.count, meta: map[string]string{"version": "1"}, update: canaries(1)}
			if err := submit(ctx, c.API, j); err != nil {
				t.Fatal(err)
			}
			first := runs(ctx, t, c.API, id, row.count)
			deployed(t, c.API, id)
			j.count, j.meta = row.next, map[string]string{"version": "2"}
			next := j.api()
			if row.held {
				next.TaskGroups[0].Constrain(api.NewConstraint("${node.unique.id}", "=", "none"))
			}
			registered, _, err := c.API.Jobs().Register(next, nil)
			if err != nil {
				t.Fatal(err)
			}
			evaluated(registered.EvalID)
			if row.stop {
				stopped, err := c.API.Allocations().Stop(&api.Allocation{ID: first[0].ID}, nil)
				if err != nil {
					t.Fatal(err)
				}
				evaluated(stopped.EvalID)
			}
			old, fresh := 0, 0
			for _, a := range allocs(ctx, t, c.API, "default", id) {
				if a.JobVersion == 0 {
					old++
				} else {
					fresh++
				}
			}
			if old != row.old || fresh != row.fresh {
				t.Errorf("%d of the old version and %d of the new one, want %d and %d", old, fresh, row.old, row.fresh)
			}
		})
	}
}
