// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

func TestRefusals(t *testing.T) {
	const queues = `
queue "small" {
  gpus       = 1
  borrow     = false
  namespaces = ["small"]
  models     = ["T4"]
}
queue "modern" {
  namespaces = ["modern"]
  models     = ["H100"]
  node_pools = ["gpu", "default"]
}`
	for _, row := range []struct {
		change func(*admit.Ask)
		status int
		says   string
	}{
		{func(a *admit.Ask) { a.Tasks[0].Request.MemoryMiB = 20 << 10 }, 422, "memory too small"},
		{func(a *admit.Ask) { a.Tasks[0].Request, _ = gpu.ParseRequest("999999G") }, 422, "memory too small"},
		{func(a *admit.Ask) { a.Tasks[0].Request, _ = gpu.ParseRequest("65") }, 422, `group "g" asks for 65 GPUs on one node`},
		{func(a *admit.Ask) { a.Tasks[0].Request.Model = "A100" }, 422, "other model than A100"},
		{func(a *admit.Ask) { a.Namespace = "modern" }, 422, "other model than H100"},
		{func(a *admit.Ask) { a.Namespace = "modern" }, 422, "queue modern may use only GPUs of model H100, node pool gpu or default"},
		{func(a *admit.Ask) { a.Datacenters = []string{"elsewhere"} }, 422, "can ever hold"},
		{func(a *admit.Ask) { a.Queue = "small" }, 403, "may not use queue"},
		{func(a *admit.Ask) { a.Queue = "none" }, 403, "does not exist"},
		{func(a *admit.Ask) { a.Namespace = "small"; a.Tasks[0].Request.Model = "V100" }, 403, "queue small may use GPUs of model T4, not V100"},
		{func(a *admit.Ask) { a.Namespace = "small"; a.Count = 3 }, 403, "at most 1"},
		{func(a *admit.Ask) { a.Reservation = "r-1" }, 409, "does not exist"},
	} {
		b := servicetest.New(t, queues, servicetest.Machine("a", 2))
		a := servicetest.Ask("job", "8G", 1)
		row.change(&a)
		_, err := b.Decide(t.Context(), []admit.Ask{a}, false)
		var refusal *admit.Refusal
		if !errors.As(err, &refusal) || refusal.Status != row.status || !strings.Contains(err.Error(), row.says) {
			t.Errorf("want %d %q, got %v", row.status, row.says, err)
		}
		if len(b.AllAssumed()) != 0 {
			t.Errorf("%q: a refusal left %d assumed", row.says, len(b.AllAssumed()))
		}
	}
}

func TestTooMuchMemoryIsTheReasonInAnyMode(t *testing.T) {
	b := servicetest.New(t, "", wholeMachine("a"))
	_, err := b.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", "999999G", 1)}, false)
	if err == nil || !strings.Contains(err.Error(), "memory too small") {
		t.Errorf("got %v", err)
	}
}
