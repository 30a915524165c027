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
