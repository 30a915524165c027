// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

const rebalanced = `
preemption { min_run_time = "0s" }
rebalance {
  enabled   = true
  interval  = "10s"
  max_moves = 1
}
`

// TestRebalancing spreads four halves over four GPUs of a cluster that was asked
// for whole ones before, and waits until whole GPUs are free again. Nothing is
// lost on the way.
func TestRebalancing(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 2)
	before := serve(ctx, t, c, "")
	for i := range 4 {
		id := fmt.Sprintf("whole-%d", i)
		admitted(ctx, t, before, job{id: id, meta: map[string]string{"gpu": "1"}})
		runs(ctx, t, c.API, id, 1)
		if err := c.Stop(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	before.kill(syscall.SIGTERM)

	r := serve(ctx, t, c, rebalanced)
	var ids []string
	for i := range 4 {
		ids = append(ids, fmt.Sprintf("half-%d", i))
		admitted(ctx, t, r, job{id: ids[i], meta: map[string]string{"gpu": "0.5", "gpu_policy": "SPREAD"}})
		runs(ctx, t, c.API, ids[i], 1)
	}
	gpus := func() map[string]int {
		t.Helper()
		taken := map[string]int{}
		for _, id := range ids {
			for _, a := range allocs(ctx, t, c.API, "default", id) {
				if a.ClientStatus != "running" {
					continue
				}
				node, group := held(ctx, t, c, a)
				taken[node+" "+group]++
			}
		}
		return taken
	}
	if n := len(gpus()); n != 4 {
		t.Fatalf("SPREAD put four halves on %d GPUs", n)
	}
	until(ctx, t, "bring the halves together", 2*time.Minute, func() (bool, string) {
		now, all := gpus(), 0
		for _, n := range now {
			all += n
		}
		return all == 4 && len(now) < 4, fmt.Sprint(now)
	})
	if _, _, text := r.ask(t, "GET", "/api/v1/gpu/cluster", ""); !strings.Contains(string(text), "GPU from going to waste") {
		t.Errorf("no event says why work was moved: %s", text)
	}
	doubleBooked(ctx, t, c.API)
	for _, id := range ids {
		runs(ctx, t, c.API, id, 1)
	}
}

// TestMovesMakeRoomForWhatWaits has a half on each of two machines with two GPUs, and a job
// that wants two whole GPUs of one machine: one half goes to the other, and nothing is lost.
func TestMovesMakeRoomForWhatWaits(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 2)
	r := serve(ctx, t, c, rebalanced)
	for _, id := range []string{"left", "right"} {
		admitted(ctx, t, r, job{id: id, meta: map[string]string{"gpu": "0.5", "gpu_policy": "SPREAD"}})
		runs(ctx, t, c.API, id, 1)
	}
	admitted(ctx, t, r, job{id: "pair", meta: map[string]string{"gpu": "2"}})
	runs(ctx, t, c.API, "pair", 1)
	for _, id := range []string{"left", "right"} {
		runs(ctx, t, c.API, id, 1)
	}
	if _, _, text := r.ask(t, "GET", "/api/v1/gpu/cluster", ""); !strings.Contains(string(text), "so that job default/pair finds room for 2") {
		t.Errorf("no event says why work was moved: %s", text)
	}
	doubleBooked(ctx, t, c.API)
}
