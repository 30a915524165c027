// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Only work that ended by itself says how long other work runs.
func TestLifetimesAreLearnedFromWhatEndedByItself(t *testing.T) {
	past := func(change func(*nomad.Alloc)) nomad.Change {
		at := time.Unix(1_800_000_000, 0)
		a := &nomad.Alloc{
			ID: "past", Namespace: "default", Job: "gone", Group: "g", NodeID: "id-a", Status: "complete", Created: at, Ended: at.Add(time.Hour),
			Devices: []nomad.TaskDevices{{Task: "t", Group: "nvidia/slice/T4/0", IDs: []string{servicetest.Instance("a", 0, 0)}}},
		}
		change(a)
		return nomad.Change{Past: a}
	}
	for name, c := range map[string]struct {
		change func(*nomad.Alloc)
		known  bool
	}{
		"by itself":            {func(*nomad.Alloc) {}, true},
		"stopped":              {func(a *nomad.Alloc) { a.Stopping = true }, false},
		"failed":               {func(a *nomad.Alloc) { a.Status = "failed" }, false},
		"lost":                 {func(a *nomad.Alloc) { a.Status = "lost" }, false},
		"without a GPU":        {func(a *nomad.Alloc) { a.Devices = nil }, false},
		"at no time":           {func(a *nomad.Alloc) { a.Ended = time.Time{} }, false},
		"as part of a service": {func(a *nomad.Alloc) { a.Job = "service" }, false},
	} {
		s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
		s.Show(servicetest.Ask("service", "1G", 1), false)
		for range 4 {
			s.State.Apply([]nomad.Change{past(c.change)}, 5)
		}
		left := func(r *state.Reader) bool {
			return r.Cluster.RunTime(nomad.JobKey{Namespace: "default", ID: "new"}, "g", 0, []place.Take{{Milli: 62}}).Known()
		}
		if got := read(s, left); got != c.known {
			t.Errorf("%s: learned: %t, want %t", name, got, c.known)
		}
	}
}

// Children of a parameterized job are known by it, work of another size by nothing but
// that it is work.
func TestLifetimesAreKnownByJobAndSize(t *testing.T) {
	s := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	at := time.Unix(1_800_000_000, 0)
	ended := func(job string, run time.Duration, slices int) {
		d := nomad.TaskDevices{Task: "t", Group: "nvidia/slice/T4/0"}
		for i := range slices {
			d.IDs = append(d.IDs, servicetest.Instance("a", 0, i))
		}
		s.State.Apply([]nomad.Change{{Past: &nomad.Alloc{
			ID: "past", Namespace: "default", Job: job, Group: "g", NodeID: "id-a", Status: "complete", Created: at, Ended: at.Add(run), Devices: []nomad.TaskDevices{d},
		}}}, 5)
	}
	for _, child := range []string{"child-1", "child-2"} {
		s.State.Apply([]nomad.Change{{Job: &nomad.Job{Key: nomad.JobKey{Namespace: "default", ID: child}, Type: "batch", GPU: true, Parent: "parent", Groups: []nomad.Group{{Name: "g"}}}}}, 5)
	}
	for range 4 {
		ended("child-1", time.Minute, 8)
		ended("large", time.Hour, 16)
		ended("small", 2*time.Hour, 8)
	}
	for name, c := range map[string]struct {
		job   string
		milli int64
		want  time.Duration
	}{
		"another child": {"child-2", 1000, time.Minute}, "another job of its size": {"new", 1000, time.Hour}, "of a size unseen": {"new", 250, 2 * time.Hour},
	} {
		got := read(s, func(r *state.Reader) time.Duration {
			return r.Cluster.RunTime(nomad.JobKey{Namespace: "default", ID: c.job}, "g", 0, []place.Take{{Milli: c.milli}}).At(0.99)
		})
		if got != c.want {
			t.Errorf("%s runs for %v, want %v", name, got, c.want)
		}
	}
}

// Where the shortest goes first, work counts as long as its author says, but not as shorter than that of
// its job did; else as long as other work did; a service without a limit as the longest.
func TestTurnsGoByHowLongWorkRuns(t *testing.T) {
	key := func(id string) nomad.JobKey { return nomad.JobKey{Namespace: "default", ID: id} }
	later := func(s *servicetest.Service, id, queue string, limit time.Duration) time.Duration {
		return read(s, func(r *state.Reader) time.Duration { return r.Queue.Turn(key(id), "g", 50, queue, limit).Later })
	}
	const shortest = servicetest.Quick + "fairness {\n order = \"shortest\"\n}\nqueue \"fifo\" {\n order = \"arrival\"\n namespaces = [\"default\"]\n}\nqueue \"own\" {\n allow_namespaces = [\"default\"]\n}\n"
	s := servicetest.New(t, shortest, servicetest.Machine("a", 1))
	s.Show(servicetest.Ask("service", "1G", 1), false)
	at := time.Unix(1_800_000_000, 0)
	if got := later(s, "new", "own", 0); got != quota.Later(quota.LongestRun) {
		t.Errorf("nothing is known, and it counts as %v later", got)
	}
	for range 4 {
		s.State.Apply([]nomad.Change{{Past: &nomad.Alloc{
			ID: "past", Namespace: "default", Job: "nightly", Group: "g", NodeID: "id-a", Status: "complete", Created: at, Ended: at.Add(time.Hour),
			Devices: []nomad.TaskDevices{{Task: "t", Group: "nvidia/slice/T4/0", IDs: []string{servicetest.Instance("a", 0, 0)}}},
		}}}, 5)
	}
	for name, row := range map[string]struct {
		job, queue string
		limit      time.Duration
		want       time.Duration
	}{
		"its limit":                            {"new", "own", time.Minute, quota.Later(time.Minute)},
		"a limit that its job kept to":         {"nightly", "own", 3 * time.Hour, quota.Later(3 * time.Hour)},
		"a limit that its job ran longer than": {"nightly", "own", time.Minute, 24 * time.Hour},
		"no limit, and its job ran":            {"nightly", "own", 0, 24 * time.Hour},
		"no limit, and others ran":             {"new", "own", 0, 24 * time.Hour},
		"a service":                            {"service", "own", 0, quota.Later(quota.LongestRun)},
		"a queue that goes by age":             {"new", "fifo", time.Minute, 0},
	} {
		if got := later(s, row.job, row.queue, row.limit); got != row.want {
			t.Errorf("%s: it counts as %v later, want %v", name, got, row.want)
		}
	}
}
