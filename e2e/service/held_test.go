// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// Nomad evaluates none of what is held when an allocation ends, a node becomes eligible or its own
// attributes change: a condition on what is unique to a node would have it evaluate all of it.
func TestWhatIsHeldCostsNomadNothing(t *testing.T) {
	t.Parallel()
	const held = 200
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, `
queue "small" {
  gpus       = 1
  borrow     = false
  namespaces = ["default"]
}`)
	admitted(ctx, t, r, job{id: "first", meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "first", 1)
	var work sync.WaitGroup
	for worker := range 8 {
		work.Go(func() {
			for i := worker; i < held; i += 8 {
				if err := submit(ctx, r.API, job{id: fmt.Sprintf("held-%d", i), meta: map[string]string{"gpu": "1G"}}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	waits := func(n int) {
		t.Helper()
		until(ctx, t, "have Nomad evaluate what is held", 2*time.Minute, func() (bool, string) {
			list, _, err := c.API.Evaluations().List((&api.QueryOptions{}).WithContext(ctx))
			if err != nil {
				return false, err.Error()
			}
			waiting := 0
			for _, e := range list {
				if strings.HasPrefix(e.JobID, "held-") && e.Status == api.EvalStatusBlocked {
					waiting++
				}
			}
			return waiting == n, fmt.Sprintf("%d wait", waiting)
		})
	}
	waits(held)
	before := blockedAgain(ctx, t, c)
	short := api.NewBatchJob("short", "short", "global", 50).AddTaskGroup(withoutGPU())
	short.TaskGroups[0].Tasks[0].SetConfig("args", []string{"0.1"})
	for what, change := range map[string]func(context.Context) error{
		"an allocation that ended": func(ctx context.Context) error {
			_, _, err := c.API.Jobs().Register(short, (&api.WriteOptions{}).WithContext(ctx))
			return err
		},
		"a node that is eligible again": func(ctx context.Context) error {
			n := c.Nodes[0].ID
			if _, err := c.API.Nodes().ToggleEligibility(n, false, nil); err != nil {
				return err
			}
			_, err := c.API.Nodes().ToggleEligibility(n, true, nil)
			return err
		},
	} {
		if err := change(ctx); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	until(ctx, t, "end the short job", time.Minute, func() (bool, string) {
		list, _, err := c.API.Jobs().Allocations("short", true, nil)
		return err == nil && len(list) == 1 && list[0].ClientStatus == "complete", fmt.Sprint(len(list), err)
	})
	// A job that is registered now is evaluated after what was unblocked before.
	admitted(ctx, t, r, job{id: "held-last", meta: map[string]string{"gpu": "1G"}})
	waits(held + 1)
	if n := blockedAgain(ctx, t, c) - before; n > 0 {
		t.Errorf("Nomad evaluated what is held %d times", n)
	}
}

// blockedAgain is how often Nomad has evaluated what waits, and had it wait again.
func blockedAgain(ctx context.Context, t *testing.T, c *cluster.Cluster) (n int) {
	t.Helper()
	body, err := c.API.Raw().Response("/v1/metrics", (&api.QueryOptions{Params: map[string]string{"format": "prometheus"}}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	for lines := bufio.NewScanner(body); lines.Scan(); {
		if name, count, _ := strings.Cut(lines.Text(), " "); strings.HasPrefix(name, "nomad_nomad_eval_reblock_count") {
			n += must(strconv.Atoi(count))
		}
	}
	return n
}
