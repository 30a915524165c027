// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// clock is a job whose children Nomad starts by the clock, whatever runs of them.
func clock(id, spec string, meta map[string]string) *api.Job {
	j := job{id: id, kind: "batch", meta: meta}.api()
	cron, enabled, prohibited := api.PeriodicSpecCron, true, false
	j.Periodic = &api.PeriodicConfig{Spec: &spec, SpecType: &cron, Enabled: &enabled, ProhibitOverlap: &prohibited}
	return j
}

// stubborn has a job ignore its signal to stop until Nomad kills it.
func stubborn(j *api.Job, patience time.Duration) *api.Job {
	t := j.TaskGroups[0].Tasks[0]
	t.KillTimeout = &patience
	t.SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", `trap "" INT TERM; while :; do sleep 1; done`})
	return j
}

// slicesHeld is what the allocs hold that have not ended, whatever they are to do.
func slicesHeld(ctx context.Context, t *testing.T, c *cluster.Cluster) int {
	t.Helper()
	q := (&api.QueryOptions{Params: map[string]string{"resources": "true"}}).WithContext(ctx)
	list, _, err := c.API.Allocations().List(q)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, a := range list {
		if cluster.Terminal(a) || a.AllocatedResources == nil {
			continue
		}
		for _, task := range a.AllocatedResources.Tasks {
			for _, d := range task.Devices {
				n += len(d.DeviceIDs)
			}
		}
	}
	return n
}

// waitsByTheClock reports whether a job bears a hold, and what that says.
func waitsByTheClock(ctx context.Context, t *testing.T, c *cluster.Cluster, id string) (said string, waits bool) {
	t.Helper()
	j, _, err := c.API.Jobs().Info(id, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range j.TaskGroups[0].Constraints {
		if strings.Contains(one.LTarget, "waits for quota") {
			return one.LTarget, true
		}
	}
	return "", false
}

// TestAClockKeepsToItsQueue has a tenant start children of a periodic job each second, which take
// 20 s to stop, and force others without end, on a real Nomad: once the first is brought back, his
// queue holds no more than its limit and one child, and after that no more than its limit.
func TestAClockKeepsToItsQueue(t *testing.T) {
	t.Parallel()
	const limit, child = 14, 7 // slices of 14: a GPU, and half of it
	ctx, c := start(t, 2)
	r := serve(ctx, t, c, oneGPU)
	admits(ctx, t, r)
	half := map[string]string{"gpu": fmt.Sprintf("%dG", child)}
	for _, j := range []*api.Job{clock("never", "0 0 1 1 *", half), stubborn(clock("often", "* * * * * * *", half), 20*time.Second)} {
		if _, _, err := r.API.Jobs().Register(j, nil); err != nil {
			t.Fatal(err)
		}
	}
	until(ctx, t, "have the periodic job wait", 2*time.Minute, func() (bool, string) {
		_, waits := waitsByTheClock(ctx, t, c, "often")
		return waits, fmt.Sprintf("%d slices are held", slicesHeld(ctx, t, c))
	})
	if said, _ := waitsByTheClock(ctx, t, c, "often"); !strings.Contains(said, "until the job is registered anew") {
		t.Errorf("nomad job status says %q", said)
	}
	// What was born before the hold is brought back, and stops.
	until(ctx, t, "come back under the limit", 2*time.Minute, func() (bool, string) {
		n := slicesHeld(ctx, t, c)
		return n <= limit, fmt.Sprintf("%d slices are held", n)
	})
	passed := 0
	for begin := time.Now(); time.Since(begin) < 45*time.Second && ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if _, _, err := r.API.Jobs().PeriodicForce("never", nil); err == nil {
			passed++
		} else if !strings.Contains(err.Error(), "would wait for quota") {
			t.Errorf("a force: %v", err)
		}
		if n := slicesHeld(ctx, t, c); n > limit {
			t.Fatalf("the queue holds %d slices of at most %d, and %d forces passed", n, limit, passed)
		}
	}
	if passed > 0 { // two children of the clock hold all, and none ends
		t.Errorf("%d forces passed", passed)
	}
	doubleBooked(ctx, t, c.API)
}

// TestForcesKeepToTheirQueue has a tenant force children of a periodic job without end: what his
// queue can pay for passes, and no more.
func TestForcesKeepToTheirQueue(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 2)
	r := serve(ctx, t, c, oneGPU)
	admits(ctx, t, r)
	if _, _, err := r.API.Jobs().Register(stubborn(clock("never", "0 0 1 1 *", map[string]string{"gpu": "7G"}), 20*time.Second), nil); err != nil {
		t.Fatal(err)
	}
	passed := 0
	for begin := time.Now(); time.Since(begin) < 20*time.Second && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) { // at most 200 requests pass per second
		if _, _, err := r.API.Jobs().PeriodicForce("never", nil); err == nil {
			passed++
			time.Sleep(1100 * time.Millisecond) // of two in one second Nomad makes one child
		} else if !strings.Contains(err.Error(), "would wait for quota") {
			t.Fatalf("a force: %v", err)
		}
		if n := slicesHeld(ctx, t, c); n > 14 {
			t.Fatalf("the queue holds %d slices of 14", n)
		}
	}
	if said, waits := waitsByTheClock(ctx, t, c, "never"); passed != 2 || waits {
		t.Errorf("%d passed, want 2; the job waits: %s", passed, said)
	}
	doubleBooked(ctx, t, c.API)
}

// TestOverlapStaysProhibited has a clock of every second start children in a queue that is full, of a
// job that prohibits that they overlap: while the first waits, Nomad starts no other.
func TestOverlapStaysProhibited(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, oneGPU)
	admits(ctx, t, r)
	whole := map[string]string{"gpu": "1"}
	alone, prohibited := clock("often", "* * * * * * *", whole), true
	alone.Periodic.ProhibitOverlap = &prohibited
	for _, j := range []*api.Job{job{id: "full", meta: whole}.api(), alone} {
		if _, _, err := r.API.Jobs().Register(j, nil); err != nil {
			t.Fatal(err)
		}
	}
	for begin := time.Now(); time.Since(begin) < 20*time.Second && ctx.Err() == nil; time.Sleep(time.Second) {
		list, _, err := c.API.Jobs().PrefixList("often/periodic-")
		if err != nil {
			t.Fatal(err)
		}
		for _, child := range list {
			if child.ParentID != "often" || len(list) > 1 {
				t.Fatalf("%d children, %s has the parent %q", len(list), child.ID, child.ParentID)
			}
		}
	}
}

// TestOnlySoManyChildrenWait has a clock of every second start children in a queue that is full: when
// 100 of them wait, Nomad starts no further one.
func TestOnlySoManyChildrenWait(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, oneGPU)
	admits(ctx, t, r)
	whole := map[string]string{"gpu": "1"}
	for _, j := range []*api.Job{job{id: "full", meta: whole}.api(), clock("often", "* * * * * * *", whole)} {
		if _, _, err := r.API.Jobs().Register(j, nil); err != nil {
			t.Fatal(err)
		}
	}
	children := func() int {
		list, _, err := c.API.Jobs().PrefixList("often/periodic-")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	until(ctx, t, "prohibit overlap", 4*time.Minute, func() (bool, string) {
		j, _, err := c.API.Jobs().Info("often", (&api.QueryOptions{}).WithContext(ctx))
		return err == nil && *j.Periodic.ProhibitOverlap, fmt.Sprintf("%d children, %v", children(), err)
	})
	if said, waits := waitsByTheClock(ctx, t, c, "often"); !waits {
		t.Errorf("the job waits no more: %s", said)
	}
	before := children()
	for begin := time.Now(); time.Since(begin) < 10*time.Second && ctx.Err() == nil; time.Sleep(time.Second) {
		if n := children(); n < 100 || n > before+1 {
			t.Fatalf("%d children, and %d before", n, before)
		}
	}
}
