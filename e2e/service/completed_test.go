// SPDX-License-Identifier: MPL-2.0

package service

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// sharded is a batch job each of whose allocs does a part of its own of the work, by its index, until
// a file of that name is in a folder. They take five seconds to stop.
func sharded(j job, folder string) *api.Job {
	j.kind = "batch"
	out := j.api()
	task, kill := out.TaskGroups[0].Tasks[0], 5*time.Second
	task.KillTimeout = &kill
	task.SetConfig("command", "sh").SetConfig("args", []string{"-c", "trap '' INT TERM; until test -e " + folder + "/$NOMAD_ALLOC_INDEX; do sleep 0.2; done"})
	return out
}

// finish lets those allocs of a sharded job end whose indices are given.
func finish(t *testing.T, folder string, indices ...int) {
	t.Helper()
	for _, i := range indices {
		write(t, filepath.Join(folder, fmt.Sprint(i)), "")
	}
}

// runsOf are all allocs of a job that ran or run: the index of each, its job version, and what became of it.
func runsOf(ctx context.Context, t *testing.T, c *api.Client, id string) (list []string) {
	t.Helper()
	all, _, err := c.Jobs().Allocations(id, true, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		_, index, _ := strings.Cut(a.Name, ".g")
		list = append(list, fmt.Sprintf("%s %s %s", index, a.DesiredStatus, a.ClientStatus))
	}
	slices.Sort(list)
	return list
}

// becomes waits until the allocs of a job are as given.
func becomes(ctx context.Context, t *testing.T, c *api.Client, id, what string, want ...string) {
	t.Helper()
	until(ctx, t, what, 30*time.Second, func() (bool, string) {
		list := runsOf(ctx, t, c, id)
		return slices.Equal(list, want), strings.Join(list, ", ")
	})
}

// Nomad runs again what has completed of a batch job when it is registered otherwise, whatever is other
// about it, and not when an alloc is stopped. With a count that leaves out what has completed it
// does not, but then starts an alloc with the lowest index in the place of one that had to wait.
func TestNomadRunsAgainWhatHasCompleted(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	register := func(j *api.Job) {
		t.Helper()
		if _, _, err := c.API.Jobs().Register(j, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	stop := func(id, index string) {
		t.Helper()
		for _, a := range allocs(ctx, t, c.API, "default", id) {
			if strings.HasSuffix(a.Name, index) {
				if _, err := c.API.Allocations().Stop(&api.Allocation{ID: a.ID}, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	folder := t.TempDir()
	finish(t, folder, 0, 1)
	four := func(id string) *api.Job { return sharded(job{id: id, count: 4}, folder) }
	done := []string{"[0] run complete", "[1] run complete"}

	register(four("changed"))
	becomes(ctx, t, c.API, "changed", "complete the first two", append(done, "[2] run running", "[3] run running")...)
	register(four("changed"))
	stop("changed", "[3]")
	becomes(ctx, t, c.API, "changed", "replace what was stopped alone", append(done, "[2] run running", "[3] run running", "[3] stop complete")...)
	other := four("changed")
	other.TaskGroups[0].Affinities = []*api.Affinity{api.NewAffinity("${node.unique.name}", "=", "none", 50)}
	register(other)
	becomes(ctx, t, c.API, "changed", "run again what had completed", "[0] run complete", "[0] run complete", "[1] run complete", "[1] run complete", "[2] run running", "[3] run running", "[3] stop complete")

	register(four("fewer"))
	becomes(ctx, t, c.API, "fewer", "complete the first two", append(done, "[2] run running", "[3] run running")...)
	held := four("fewer")
	two := 2
	held.TaskGroups[0].Count = &two
	held.TaskGroups[0].Constraints = []*api.Constraint{api.NewConstraint("${node.unique.name}", "=", "none")}
	register(held)
	stop("fewer", "[3]")
	becomes(ctx, t, c.API, "fewer", "have what was stopped wait", append(done, "[2] run running", "[3] stop complete")...)
	held = four("fewer")
	held.TaskGroups[0].Count = &two
	register(held)
	becomes(ctx, t, c.API, "fewer", "start the wrong index", "[0] run complete", "[0] run complete", "[1] run complete", "[2] run running", "[3] stop complete")
}

// What has completed of a batch job that made room for another is not run again: while nothing of the job
// waits, it is not given its node back.
func TestWhatHasCompletedIsNotRunAgain(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 3)
	r := serve(ctx, t, c, quick)
	register := func(j *api.Job, where *api.Constraint) {
		t.Helper()
		j.TaskGroups[0].Constraints = []*api.Constraint{where}
		if _, _, err := r.API.Jobs().Register(j, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	apart := func(j *api.Job) {
		t.Helper()
		register(j, api.NewConstraint("", "distinct_hosts", "true"))
		runs(ctx, t, c.API, *j.ID, 3)
	}
	admitted(ctx, t, r, job{id: "first", meta: map[string]string{"gpu": "1G"}}) // the service is ready
	if err := c.Stop(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	apart(job{id: "filler", priority: 70, count: 3, meta: map[string]string{"gpu": "1"}}.api())
	apart(sharded(job{id: "shards", priority: 20, count: 3, meta: map[string]string{"gpu": "1"}}, folder))
	register(job{id: "high", priority: 60, meta: map[string]string{"gpu": "1"}}.api(), api.NewConstraint("${node.unique.name}", "=", c.Nodes[0].Name))

	// While its victim stops, another alloc completes, and what was stopped goes on in its place.
	victim := -1
	until(ctx, t, "evict one", 20*time.Second, func() (bool, string) {
		list := runsOf(ctx, t, c.API, "shards")
		for i := range 3 {
			if slices.Contains(list, fmt.Sprintf("[%d] stop running", i)) {
				victim = i
			}
		}
		return victim >= 0, strings.Join(list, ", ")
	})
	done, goesOn := (victim+1)%3, (victim+2)%3
	finish(t, folder, done)
	runs(ctx, t, c.API, "high", 1)
	want := []string{fmt.Sprintf("[%d] run complete", done), fmt.Sprintf("[%d] run running", goesOn), fmt.Sprintf("[%d] run running", victim), fmt.Sprintf("[%d] stop complete", victim)}
	slices.Sort(want)
	becomes(ctx, t, c.API, "shards", "go on elsewhere", want...)
	for range 16 { // the service looks every second
		time.Sleep(500 * time.Millisecond)
		if list := runsOf(ctx, t, c.API, "shards"); !slices.Equal(list, want) {
			t.Fatalf("%q, want %q", list, want)
		}
	}
	j, _, err := c.API.Jobs().Info("shards", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if *j.Version != 1 {
		t.Errorf("it was registered again %d times for one eviction", *j.Version)
	}
	finish(t, folder, goesOn, victim)
	until(ctx, t, "end as a whole", 20*time.Second, func() (bool, string) {
		j, _, err := c.API.Jobs().Info("shards", (&api.QueryOptions{}).WithContext(ctx))
		return err == nil && *j.Status == "dead", fmt.Sprint(err)
	})
	time.Sleep(3 * time.Second)
	if list := runsOf(ctx, t, c.API, "shards"); len(list) != 4 {
		t.Errorf("after its end: %q", list)
	}
	doubleBooked(ctx, t, c.API)
}
