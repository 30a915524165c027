// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Nomad runs nothing again of a batch job that has completed as a whole when it is registered
// unchanged, whether or not it came through the service; and all of it when it was stopped
// before, or is registered with a change.
func TestNomadRunsAgainWhatHasEnded(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, quick)
	folder := t.TempDir()
	finish(t, folder, 0, 1)
	done := []string{"[0] run complete", "[1] run complete"}
	admitted(ctx, t, r, job{id: "first", meta: map[string]string{"gpu": "1G"}}) // the service is ready
	for name, to := range map[string]*api.Client{"around": c.API, "through": r.API} {
		register := func(priority int) {
			t.Helper()
			ended := job{id: name, count: 2}
			if to == r.API {
				ended.meta = map[string]string{"gpu": "1G"}
			}
			j := sharded(ended, folder)
			j.Priority = &priority
			if _, _, err := to.Jobs().Register(j, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
				t.Fatal(err)
			}
		}
		register(50)
		becomes(ctx, t, c.API, name, "complete", done...)
		register(50)
		until(ctx, t, name+" is evaluated again", 30*time.Second, func() (bool, string) {
			evals, _, err := c.API.Jobs().Evaluations(name, (&api.QueryOptions{}).WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			evals = slices.DeleteFunc(evals, func(e *api.Evaluation) bool { return e.TriggeredBy != "job-register" || e.Status != "complete" })
			return len(evals) == 2, fmt.Sprint(len(evals))
		})
		becomes(ctx, t, c.API, name, "stay complete", done...)
		register(51)
		becomes(ctx, t, c.API, name, "run again what is changed", "[0] run complete", "[0] run complete", "[1] run complete", "[1] run complete")
		if err := c.Stop(ctx, name); err != nil {
			t.Fatal(err)
		}
		register(51)
		becomes(ctx, t, c.API, name, "run again what was stopped", "[0] run complete", "[0] run complete", "[0] run complete", "[1] run complete", "[1] run complete", "[1] run complete")
	}
}
