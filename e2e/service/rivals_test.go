// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// TestRoomGoesToTheOneThatItIsMadeFor has room made again and again for a job, each time with a higher priority,
// while others wait for it with lower ones: three servers evaluate up to five of them at once.
func TestRoomGoesToTheOneThatItIsMadeFor(t *testing.T) {
	t.Parallel()
	ctx, c := startWith(t, 1, cluster.Options{Servers: 3, Schedulers: 2})
	r := serve(ctx, t, c, quick)
	admitted(ctx, t, r, job{id: "full", priority: 100, meta: map[string]string{"gpu": "1"}})
	admitted(ctx, t, r, job{id: "first", priority: 80, meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "full", 1)
	runs(ctx, t, c.API, "first", 1)
	const rivals, rounds = 10, 8
	for i := range rivals {
		admitted(ctx, t, r, job{id: fmt.Sprint("rival-", i), priority: 20 + i, meta: map[string]string{"gpu": "1"}})
	}
	for i := range rounds {
		id := fmt.Sprint("waits-", i)
		admitted(ctx, t, r, job{id: id, priority: 90 + i, meta: map[string]string{"gpu": "1"}})
		until(ctx, t, "start "+id, 20*time.Second, func() (bool, string) {
			list, _, err := c.API.Allocations().List((&api.QueryOptions{Filter: `JobID matches "^(rival|waits|first)" and DesiredStatus == "run"`}).WithContext(ctx))
			if err != nil {
				return false, err.Error()
			}
			for _, a := range list {
				if a.JobID == id {
					return true, ""
				}
				if strings.HasPrefix(a.JobID, "rival") {
					t.Fatalf("round %d: %s took the room that was made for %s", i, a.JobID, id)
				}
			}
			return false, fmt.Sprint(len(list))
		})
	}
	if n := strings.Count(r.said(t), `"action":"evict"`); n != rounds {
		t.Errorf("%d evictions for %d jobs", n, rounds)
	}
	most := 0
	for i := range rivals {
		versions, _, _, err := c.API.Jobs().Versions(fmt.Sprint("rival-", i), false, nil)
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, int(*versions[0].Version))
	}
	if most > 0 {
		t.Errorf("a rival was registered again %d times", most)
	}
	doubleBooked(ctx, t, c.API)
}

// TestWhoGetsRoomInNomad measures, without the service, which of many waiting jobs Nomad starts
// in room that comes free: NOMAD_GPU_RACE is servers x schedulers of each.
func TestWhoGetsRoomInNomad(t *testing.T) {
	text := os.Getenv("NOMAD_GPU_RACE")
	if text == "" {
		t.Skip("NOMAD_GPU_RACE says with how many servers and schedulers: 1x16")
	}
	for _, row := range strings.Fields(text) {
		t.Run(row, func(t *testing.T) {
			servers, schedulers, _ := strings.Cut(row, "x")
			ctx, c := startWith(t, 1, cluster.Options{Servers: must(strconv.Atoi(servers)), Schedulers: must(strconv.Atoi(schedulers))})
			for _, victims := range []int{1, 2} {
				won := positions(ctx, t, c, 24, victims, 20)
				t.Logf("%s, room of %d allocs: position in the order -> times %v", row, victims, won)
			}
		})
	}
}

// positions fills a GPU with so many allocs, has jobs wait for all of it, ends those allocs, and
// counts which of the jobs is started: 0 is the first in Nomad's order.
func positions(ctx context.Context, t *testing.T, c *cluster.Cluster, waiting, victims, rounds int) map[int]int {
	t.Helper()
	took := map[int]int{}
	slices := func(n int) []*api.RequestedDevice {
		count := uint64(n)
		return []*api.RequestedDevice{{Name: "nvidia/slice", Count: &count}}
	}
	register := func(j job) {
		t.Helper()
		if err := submit(ctx, c.API, j); err != nil {
			t.Fatal(err)
		}
	}
	end := func(id string) {
		t.Helper()
		if _, _, err := c.API.Jobs().Deregister(id, false, nil); err != nil {
			t.Fatal(err)
		}
	}
	register(job{id: "other", priority: 100, devices: slices(14)})
	runs(ctx, t, c.API, "other", 1)
	for range rounds {
		for i := range victims {
			register(job{id: fmt.Sprintf("victim%d", i), priority: 5, devices: slices(14 / victims)})
		}
		for i := range victims {
			runs(ctx, t, c.API, fmt.Sprintf("victim%d", i), 1)
		}
		for i := range waiting {
			register(job{id: fmt.Sprintf("w%02d", i), priority: 90 - i, devices: slices(14)})
		}
		until(ctx, t, "have all wait", 20*time.Second, func() (bool, string) {
			list, _, err := c.API.Evaluations().List(&api.QueryOptions{Filter: `Status == "blocked"`})
			return err == nil && len(list) == waiting, fmt.Sprint(len(list), err)
		})
		for i := range victims {
			end(fmt.Sprintf("victim%d", i))
		}
		until(ctx, t, "have one start", 20*time.Second, func() (bool, string) {
			list, _, err := c.API.Allocations().List(&api.QueryOptions{Filter: `JobID matches "^w" and DesiredStatus == "run"`})
			if err == nil && len(list) == 1 {
				took[must(strconv.Atoi(list[0].JobID[1:]))]++
			}
			return err == nil && len(list) > 0, ""
		})
		for i := waiting - 1; i >= 0; i-- {
			end(fmt.Sprintf("w%02d", i))
		}
	}
	end("other")
	return took
}
