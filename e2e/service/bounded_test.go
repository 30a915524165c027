// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// What a tenant dispatches with more priority than its queue may have waits behind what goes first, in
// Nomad too: it keeps no work from the room that is made for that.
func TestADispatchHasNoMorePriorityThanItsQueue(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, quick+`
queue "low" {
  max_priority = 20
  namespaces   = ["default"]
}
queue "team" {
  gpus       = 1
  namespaces = ["team"]
}`)
	if _, err := c.API.Namespaces().Register(&api.Namespace{Name: "team"}, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		id := fmt.Sprintf("full-%d", i)
		admitted(ctx, t, r, job{id: id, meta: map[string]string{"gpu": "1"}})
		runs(ctx, t, c.API, id, 1)
	}
	many := job{id: "many", kind: "batch", priority: 100, meta: map[string]string{"gpu": "1"}}.api()
	many.ParameterizedJob = &api.ParameterizedJobConfig{}
	if _, _, err := r.API.Jobs().Register(many, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		t.Fatal(err)
	}
	for what, o := range map[string]*api.DispatchOptions{"of its parent": {JobID: "many"}, "of its own": {JobID: "many", Priority: 100}} {
		child, _, err := r.API.Jobs().DispatchOpts(o, (&api.WriteOptions{}).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		if j, _, err := c.API.Jobs().Info(child.DispatchedJobID, nil); err != nil || *j.Priority != 20 {
			t.Errorf("with a priority %s it has %d, %v", what, *j.Priority, err)
		}
		until(ctx, t, "have a dispatch wait", time.Minute, func() (bool, string) {
			list, _, err := c.API.Jobs().Evaluations(child.DispatchedJobID, nil)
			return err == nil && len(list) > 0 && list[0].Status == api.EvalStatusBlocked, fmt.Sprint(len(list), err)
		})
	}
	admitted(ctx, t, r, job{id: "first", namespace: "team", priority: 60, meta: map[string]string{"gpu": "1"}})
	runsIn(ctx, t, c.API, "team", "first", 1)
	doubleBooked(ctx, t, c.API)
}
