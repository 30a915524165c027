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
