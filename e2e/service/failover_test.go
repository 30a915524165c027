// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
)

// TestFailover kills the leader and measures how long there is no leader.
func TestFailover(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	first := serve(ctx, t, c, "")
	admitted(ctx, t, first, job{id: "before", meta: map[string]string{"gpu": "1G"}})
	second := serve(ctx, t, c, "")
	// The second replica passes admissions to the first.
	took := admitted(ctx, t, second, job{id: "passed-on", meta: map[string]string{"gpu": "1G"}})
	t.Logf("through the other replica after %s", took.Round(10*time.Millisecond))
	before := runs(ctx, t, c.API, "before", 1)[0].ID

	// Who submits meanwhile waits, and gets one answer.
	first.kill(syscall.SIGKILL)
	began := time.Now()
	if err := submit(ctx, second.API, job{id: "after", meta: map[string]string{"gpu": "1G"}}); err != nil {
		t.Error(err)
	}
	took = time.Since(began)
	t.Logf("failover after a kill: %s", took.Round(10*time.Millisecond))
	if took > 45*time.Second {
		t.Errorf("failover took %s, want under 45s", took)
	}
	for _, id := range []string{"before", "passed-on", "after"} {
		runs(ctx, t, c.API, id, 1)
	}
	// What the first leader decided is known to the second.
	admitted(ctx, t, second, job{id: "before", meta: map[string]string{"gpu": "1G"}})
	if now := runs(ctx, t, c.API, "before", 1)[0].ID; now != before {
		t.Error("a job that did not change was replaced after the failover")
	}

	third := serve(ctx, t, c, "")
	second.kill(syscall.SIGTERM)
	took = admitted(ctx, t, third, job{id: "last", meta: map[string]string{"gpu": "1G"}})
	t.Logf("failover after a stop: %s", took.Round(10*time.Millisecond))
	runs(ctx, t, c.API, "last", 1)
	doubleBooked(ctx, t, c.API)
}

// TestWhoStoppedAJobIsKnownAfterAKill kills the service at the moment at which a job is stopped for
// another: the next replica tells for which one, before it leads.
func TestWhoStoppedAJobIsKnownAfterAKill(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	first := serve(ctx, t, c, quick)
	admitted(ctx, t, first, job{id: "low", priority: 20, meta: map[string]string{"gpu": "2"}})
	runs(ctx, t, c.API, "low", 1)
	if err := submit(ctx, first.API, job{id: "high", priority: 80, meta: map[string]string{"gpu": "2"}}); err != nil {
		t.Fatal(err)
	}
	for stopped := false; !stopped; {
		list, _, err := c.API.Jobs().Allocations("low", false, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			t.Fatal("the job is not stopped for the other: ", err)
		}
		stopped = slices.ContainsFunc(list, func(a *api.AllocationListStub) bool { return a.DesiredStatus != "run" })
	}
	first.kill(syscall.SIGKILL)

	second := serve(ctx, t, c, quick)
	var past rest.JobEvents
	until(ctx, t, "ask the next replica", 20*time.Second, func() (bool, string) {
		_, err := second.API.Raw().Query("/api/v1/gpu/events?job=low", &past, (&api.QueryOptions{}).WithContext(ctx))
		return err == nil, fmt.Sprint(err)
	})
	if len(past.Events) != 1 || past.Events[0].Kind != "evict" || past.Events[0].For != "default/high" || !strings.Contains(past.Events[0].Text, "high") {
		t.Errorf("it tells %+v", past.Events)
	}
	t.Logf("it tells: %+v", past.Events)
}

// TestNodeLost pulls a machine's plug, looks for its work elsewhere, and
// brings the machine back.
func TestNodeLost(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 2)
	r := serve(ctx, t, c, "")
	admitted(ctx, t, r, job{id: "mover", meta: map[string]string{"gpu": "4G"}})
	live := runs(ctx, t, c.API, "mover", 1)
	lost := c.Nodes[0]
	if live[0].NodeID != lost.ID {
		lost = c.Nodes[1]
	}
	if err := lost.PowerOff(); err != nil {
		t.Fatal(err)
	}
	took := until(ctx, t, "start the job elsewhere", 90*time.Second, func() (bool, string) {
		for _, a := range allocs(ctx, t, c.API, "default", "mover") {
			if a.NodeID != lost.ID && a.ClientStatus == "running" {
				return true, ""
			}
		}
		return false, "it does not run"
	})
	t.Logf("elsewhere after %s", took.Round(10*time.Millisecond))
	if err := submit(ctx, r.API, job{id: "new", meta: map[string]string{"gpu": "1"}}); err != nil {
		t.Fatal(err)
	}
	if a := runs(ctx, t, c.API, "new", 1)[0]; a.NodeID == lost.ID {
		t.Error("a job was placed on a machine without power")
	}
	if err := lost.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	if err := submit(ctx, r.API, job{id: "large", meta: map[string]string{"gpu": "2"}}); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "large", 1)
	doubleBooked(ctx, t, c.API)
}

// listens waits until a replica that just started answers.
func listens(ctx context.Context, t *testing.T, r *replica) {
	t.Helper()
	until(ctx, t, "listen", 20*time.Second, func() (bool, string) {
		var alive struct{}
		_, err := r.API.Raw().Query("/healthz", &alive, (&api.QueryOptions{}).WithContext(ctx))
		return err == nil, fmt.Sprint(err)
	})
}

// TestChaos submits around the service and through it in turns, while the
// service is killed again and again: nothing is held twice, nothing is
// stranded, and a job that is submitted without a leader waits.
func TestChaos(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 3)
	const brief = `replica { lock_ttl = "10s" }`
	r := serve(ctx, t, c, brief)
	admitted(ctx, t, r, job{id: "warm", meta: map[string]string{"gpu": "1G"}})
	random := rand.New(rand.NewPCG(1, 2))
	count := uint64(2)
	direct := []*api.RequestedDevice{{Name: "nvidia/slice", Count: &count}}
	accepted := []string{}
	for i := range 60 {
		if i%20 == 19 {
			r.kill(syscall.SIGKILL)
			r = serve(ctx, t, c, brief)
			listens(ctx, t, r)
		}
		id := fmt.Sprintf("c-%d", i)
		if random.IntN(2) == 0 {
			if err := submit(ctx, c.API, job{id: id, devices: direct}); err != nil {
				t.Fatal(err)
			}
			accepted = append(accepted, id)
		} else if err := submit(ctx, r.API, job{id: id, meta: map[string]string{"gpu": fmt.Sprintf("%dG", 1+random.IntN(3))}}); err != nil {
			t.Error(err)
		} else {
			accepted = append(accepted, id)
		}
		// Twenty jobs of at most three slices fit on six GPUs of fourteen.
		if random.IntN(4) == 0 && len(accepted) > 3 || len(accepted) == 20 {
			gone := random.IntN(len(accepted))
			if err := c.Stop(ctx, accepted[gone]); err != nil {
				t.Fatal(err)
			}
			accepted = append(accepted[:gone], accepted[gone+1:]...)
		}
		doubleBooked(ctx, t, c.API)
	}
	admitted(ctx, t, r, job{id: "calm", meta: map[string]string{"gpu": "1G"}})
	for _, id := range append(accepted, "warm", "calm") {
		runs(ctx, t, c.API, id, 1)
	}
	t.Logf("%d jobs run", len(accepted)+2)
	doubleBooked(ctx, t, c.API)
}
