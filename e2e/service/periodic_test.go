// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
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

// waitsAsBorn reports whether a child waits, whole, as it was born.
func waitsAsBorn(ctx context.Context, t *testing.T, c *cluster.Cluster, id string) (waits bool, said string) {
	t.Helper()
	j, _, err := c.API.Jobs().Info(id, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	hold := j.LookupTaskGroup("nomad-gpu")
	if hold == nil || *j.Status == "dead" {
		t.Fatalf("%s is %s, and has %d groups", id, *j.Status, len(j.TaskGroups))
	}
	counts := fmt.Sprintf("%d and %d", *j.TaskGroups[0].Count, *hold.Count)
	return counts == "0 and 1", *j.Status + ", " + counts + ", " + *j.ParentID
}

// TestChildrenWaitInTheirTurn has children of one parameterized job wait for one GPU on a real Nomad: they
// run one after the other, the highest priority first, make room for what goes before them, come
// back, and are the children that they were.
func TestChildrenWaitInTheirTurn(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, quick+`
queue "team" {
  gpus       = 1
  borrow     = false
  namespaces = ["default"]
}
queue "other" {
  gpus       = 2
  namespaces = ["other"]
}`)
	if _, err := c.API.Namespaces().Register(&api.Namespace{Name: "other"}, nil); err != nil {
		t.Fatal(err)
	}
	many := job{id: "many", kind: "batch", priority: 30, meta: map[string]string{"gpu": "1"}}.api()
	many.ParameterizedJob = &api.ParameterizedJobConfig{Payload: "required", MetaOptional: []string{"of"}}
	w := (&api.WriteOptions{}).WithContext(ctx)
	admits(ctx, t, r)
	if _, _, err := r.API.Jobs().Register(many, w); err != nil {
		t.Fatal(err)
	}
	plan, _, err := r.API.Jobs().Plan(many, true, w)
	if err != nil || plan.Diff.Type != "None" {
		t.Errorf("unchanged, it is planned as %+v, %v", plan, err)
	}
	var ids []string
	for _, priority := range []int{20, 60, 40} {
		made, _, err := r.API.Jobs().DispatchOpts(&api.DispatchOptions{JobID: "many", Priority: priority, Payload: []byte("payload"), Meta: map[string]string{"of": "mine"}}, w)
		if err != nil {
			t.Fatal(err)
		}
		if ids = append(ids, made.DispatchedJobID); len(ids) == 1 {
			runs(ctx, t, c.API, ids[0], 1)
		}
	}
	stays := func(want int) { // who runs, while the others wait and Nomad collects its garbage
		t.Helper()
		if want >= 0 {
			runs(ctx, t, c.API, ids[want], 1)
		}
		if err := c.API.System().GarbageCollect(); err != nil {
			t.Fatal(err)
		}
		for i, id := range ids {
			if i != want {
				until(ctx, t, "wait", time.Minute, func() (bool, string) { return waitsAsBorn(ctx, t, c, id) })
			}
		}
	}
	until(ctx, t, "evict for its own queue's first", time.Minute, func() (bool, string) { return waitsAsBorn(ctx, t, c, ids[0]) })
	stays(1)
	for i := range 2 { // both GPUs
		admittedIn := job{id: fmt.Sprintf("first-%d", i), namespace: "other", priority: 90, meta: map[string]string{"gpu": "1"}}
		admitted(ctx, t, r, admittedIn)
		runsIn(ctx, t, c.API, "other", admittedIn.id, 1)
	}
	stays(-1)
	if _, _, err := r.API.Jobs().Deregister("first-0", false, (&api.WriteOptions{Namespace: "other"}).WithContext(ctx)); err != nil {
		t.Fatal(err)
	}
	stays(1)
	for _, id := range ids {
		j, _, err := c.API.Jobs().Info(id, nil)
		if err != nil || !j.Dispatched || *j.ParentID != "many" || j.Meta["of"] != "mine" || len(j.Payload) == 0 {
			t.Errorf("%s: %+v, %v", id, j, err)
		}
	}
	doubleBooked(ctx, t, c.API)
}

// TestAClockKeepsToItsQueue has a tenant start children of a periodic job each second, which take
// 20 s to stop, and force others without end, on a real Nomad: his queue never holds more than its limit.
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
	full := false
	for begin := time.Now(); time.Since(begin) < 30*time.Second && ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		if _, _, err := r.API.Jobs().PeriodicForce("never", nil); err != nil {
			t.Errorf("a force: %v", err)
		}
		n := slicesHeld(ctx, t, c)
		if full = full || n == limit; n > limit {
			t.Fatalf("the queue holds %d slices of at most %d", n, limit)
		}
	}
	if !full {
		t.Error("it holds less than its limit all the time")
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
