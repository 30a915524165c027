// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// TestAtOnce submits many jobs from many clients at once, and one job of many
// allocs, and measures how many lie where they were meant to.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 3)
	r := serve(ctx, t, c, "")
	admitted(ctx, t, r, job{id: "warm", meta: map[string]string{"gpu": "1G"}})
	const jobs, clients = 40, 8
	begin := time.Now()
	var group errgroup.Group
	var mu sync.Mutex
	next := 0
	for range clients {
		group.Go(func() error {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= jobs {
					return nil
				}
				if err := submit(ctx, r.API, job{id: fmt.Sprintf("o-%d", i), meta: map[string]string{"gpu": "1G"}}); err != nil {
					return err
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	same := 0
	for i := range jobs {
		id := fmt.Sprintf("o-%d", i)
		wantNode, wantGroup := wanted(ctx, t, c, id)
		if node, group := held(ctx, t, c, runs(ctx, t, c.API, id, 1)[0]); node == wantNode && group == wantGroup {
			same++
		}
	}
	t.Logf("%d jobs from %d clients in %s, %.0f/s; %d where they were meant to be", jobs, clients, took.Round(time.Millisecond), jobs/took.Seconds(), same)
	doubleBooked(ctx, t, c.API)

	if err := submit(ctx, r.API, job{id: "many", count: 12, meta: map[string]string{"gpu": "2G"}}); err != nil {
		t.Fatal(err)
	}
	chosen := map[string]int{}
	choices, _ := record(ctx, t, c.API, "default/many")["groups"].(map[string]any)["g"].(map[string]any)["shown"].(map[string]any)["choices"].([]any)
	for _, choice := range choices {
		id, _ := choice.(map[string]any)["node_id"].(string)
		chosen[id]++
	}
	got := map[string]int{}
	for _, a := range runs(ctx, t, c.API, "many", 12) {
		got[a.NodeID]++
	}
	t.Logf("12 allocs of one job: per node chosen %v, got %v", chosen, got)
	doubleBooked(ctx, t, c.API)
}
