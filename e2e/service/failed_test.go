// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// failureKeepsQuota has work fail that Nomad starts again half a minute later: all that its queue
// has is kept for it, also by a replica that came to lead meanwhile.
func failureKeepsQuota(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica) {
	t.Helper()
	fails := job{id: "fails", namespace: "team-c", meta: map[string]string{"gpu": "0.5"}}.api()
	fails.TaskGroups[0].Tasks[0].SetConfig("command", "sh").SetConfig("args", []string{"-c", "sleep 1; exit 1"})
	delay, constant, unlimited := 30*time.Second, "constant", true
	fails.TaskGroups[0].ReschedulePolicy = &api.ReschedulePolicy{Delay: &delay, DelayFunction: &constant, Unlimited: &unlimited}
	if _, _, err := r.API.Jobs().Register(fails, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		t.Fatal(err)
	}
	ended := func() (n int, announced bool) {
		list, _, err := c.API.Jobs().Allocations("fails", false, &api.QueryOptions{Namespace: "team-c"})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			if a.ClientStatus == api.AllocClientStatusFailed {
				n++
				announced = announced || a.FollowupEvalID != ""
			}
		}
		return n, announced
	}
	until(ctx, t, "fail, and be announced to start again", 20*time.Second, func() (bool, string) {
		n, announced := ended()
		return announced, fmt.Sprintf("%d failed", n)
	})
	waits := func(id string) {
		t.Helper()
		next := job{id: id, namespace: "team-c", meta: map[string]string{"gpu": "0.5"}}
		if err := submit(ctx, r.API, next); err != nil {
			t.Fatal(err)
		}
		j, _, err := c.API.Jobs().Info(id, &api.QueryOptions{Namespace: "team-c"})
		if err != nil || !strings.Contains(constraints(j), "waits for quota") {
			t.Errorf("%s is not held: %v, %v", id, constraints(j), err)
		}
	}
	waits("next")
	r.kill(syscall.SIGTERM)
	r = serve(ctx, t, c, teams)
	admitted(ctx, t, r, job{id: "reader", namespace: "team-a", meta: map[string]string{"gpu": "1"}}) // it leads now
	waits("last")
	if n, _ := ended(); n > 1 {
		t.Log("the other replica took so long to lead that the work had failed again")
	}
	until(ctx, t, "start it again", time.Minute, func() (bool, string) {
		n, _ := ended()
		if live := len(allocs(ctx, t, c.API, "team-c", "next")) + len(allocs(ctx, t, c.API, "team-c", "last")); live > 0 {
			t.Fatalf("%d run of what waits for the quota", live)
		}
		return n > 1, fmt.Sprintf("%d failed", n)
	})
	if _, _, err := c.API.Jobs().Deregister("fails", true, &api.WriteOptions{Namespace: "team-c"}); err != nil {
		t.Fatal(err)
	}
	runsIn(ctx, t, c.API, "team-c", "next", 1)
}
