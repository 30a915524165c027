// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const queues = `
preemption {
  max_per_job   = 2
  max_per_queue = 3
}
queue "org" {
  gpus   = 4
  borrow = false
}
queue "x" {
  parent       = "org"
  gpus         = 1
  namespaces   = ["x"]
  max_priority = 40
}
queue "y" {
  parent     = "org"
  gpus       = 2
  namespaces = ["y"]
}
queue "free" {
  gpus       = 0
  namespaces = ["free"]
}
queue "memory" {
  gpu_memory_gb = 8
  borrow        = false
  namespaces    = ["memory"]
}
`

// job is an ask of a namespace.
func job(namespace, id string, priority int) admit.Ask {
	a := servicetest.Ask(id, "1G", 1)
	a.Namespace, a.Priority = namespace, priority
	return a
}

func TestQueuesAreTrees(t *testing.T) {
	s := servicetest.New(t, queues, servicetest.Machine("a", 8))
	s.State.View(func(r *state.Reader) {
		for _, row := range []struct {
			x, y          string
			within, share bool
		}{
			{"x", "org", true, true}, {"org", "x", false, true}, {"x", "x", true, true}, {"x", "y", false, true},
			{"free", "x", false, false}, {"x", "free", false, false}, {"free", "free", true, false}, {"memory", "memory", true, true}, {"none", "org", false, false},
		} {
			if r.Config().Within(row.x, row.y) != row.within || (r.Config().SharedLimit(row.x, row.y) != "") != row.share {
				t.Errorf("%s and %s: within %v, shared limit %q", row.x, row.y, r.Config().Within(row.x, row.y), r.Config().SharedLimit(row.x, row.y))
			}
		}
	})
}

// What waits is in order, with the time since when it does and the priority that its
// queue allows.
func TestWaiting(t *testing.T) {
	s := servicetest.New(t, queues, servicetest.Machine("a", 8))
	holds := job("x", "holds", 10)
	s.Register(holds)
	s.Run(holds, "alloc", "a", 0, 0, 16)
	for i, a := range []admit.Ask{job("x", "capped", 90), job("y", "other", 40), job("y", "low", 10), job("free", "free", 40), job("nobody", "alone", 40)} {
		s.Register(a)
		s.Pass(time.Second)
		s.Block(a, i+1)
	}
	stopped := job("y", "stopped", 90)
	s.Register(stopped)
	s.Block(stopped, 1)
	j := s.Job(servicetest.KeyOf(stopped))
	j.Stopped = true
	s.State.Apply([]nomad.Change{{Job: &j}}, 99)
	s.Block(job("y", "unknown", 90), 1)
	idle := job("y", "idle", 90)
	s.Register(idle)
	s.Block(idle, 0)
	s.State.View(func(r *state.Reader) {
		var got []string
		for _, w := range slices.Collect(r.Queue.Waiting()) {
			got = append(got, fmt.Sprintf("%s/%s %d %d", w.Job, w.Group, w.Missing, w.Turn.Priority))
		}
		if want := "y/other/g 2 40, x/capped/g 1 40, nobody/alone/g 5 40, free/free/g 4 40, y/low/g 3 10"; strings.Join(got, ", ") != want {
			t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
		}
		key := nomad.JobKey{Namespace: "x", ID: "capped"}
		if turn := r.Queue.Turn(key, "g", 90, "", 0); turn.Priority != 40 || turn.Queue != "x" || !turn.Since.Equal(r.Cluster.Blocked(key).Since) {
			t.Errorf("turn %+v", turn)
		}
		if turn := r.Queue.Turn(key, "h", 30, "", 0); turn.Priority != 30 || !turn.Since.Equal(r.Now()) {
			t.Errorf("what does not wait yet: %+v", turn)
		}
		if r.Cluster.Blocked(key).Allocs("g") != 1 || r.Cluster.Blocked(key).Allocs("h") != 0 || r.Cluster.Blocked(nomad.JobKey{}).Allocs("g") != 0 {
			t.Error("wrong allocs are missing")
		}
	})
	key := nomad.JobKey{Namespace: "x", ID: "capped"}
	for range 2 {
		s.State.Apply([]nomad.Change{{Unblocked: &key}}, 100)
		if left := read(s, func(r *state.Reader) []*state.Waiting { return slices.Collect(r.Queue.Waiting()) }); len(left) != 4 || read(s, func(r *state.Reader) *nomad.Blocked { return r.Cluster.Blocked(key) }) != nil {
			t.Errorf("waiting: %v", left)
		}
	}
}

// What is over its queue is taken from the end of the order.
func TestHolders(t *testing.T) {
	s := servicetest.New(t, queues, servicetest.Machine("a", 8))
	for i, a := range []admit.Ask{job("x", "first", 30), job("x", "low", 10), job("y", "second", 30), job("free", "else", 1)} {
		s.Register(a)
		s.Pass(time.Second)
		s.Run(a, a.JobID, "a", i, 0, 16)
	}
	s.Run(job("x", "cpu", 1), "cpu", "a", 0, 0, 0)
	s.State.View(func(r *state.Reader) {
		list := func(queue string, matches func(nomad.JobKey) bool) (ids string) {
			for _, u := range r.Queue.HoldersIn(queue, matches) {
				ids += u.ID + " "
			}
			return ids
		}
		all := func(nomad.JobKey) bool { return true }
		if got := list("org", all); got != "low first second " {
			t.Errorf("org: %s", got)
		}
		if got := list("org", func(key nomad.JobKey) bool { return key.Namespace == "y" }); got != "second " {
			t.Errorf("some of org: %s", got)
		}
		if used, borrowed := r.Queue.Used("x"); used.Milli != 2000 || borrowed.Milli != 1000 {
			t.Errorf("x holds %v, borrowed %v", used, borrowed)
		}
		if r.Queue.Exceeds("org") || r.Queue.OverQuota("org", place.Charge{Milli: 1000}) != "" || r.Queue.OverQuota("y", place.Charge{Milli: 1001}) == "" || r.Queue.NeverInQuota("y", place.Charge{Milli: 4000}) != "" || r.Queue.NeverInQuota("y", place.Charge{Milli: 4001}) == "" {
			t.Errorf("quota: %s", r.Queue.OverQuota("org", place.Charge{Milli: 1000}))
		}
	})
	for i := range 2 {
		s.Run(job("y", "second", 30), fmt.Sprint("more", i), "a", 4+i, 0, 16)
	}
	if !read(s, func(r *state.Reader) bool { return r.Queue.Exceeds("org") }) {
		t.Error("five GPUs of four, and it is not too much")
	}
}

// Whether an alloc may be evicted: not while it stops, comes back at once, has gone
// often enough, or its canaries wait.
func TestEvictable(t *testing.T) {
	for name, row := range map[string]struct {
		change               func(*servicetest.Service, *nomad.Alloc)
		stoppable, evictable bool
	}{
		"runs":         {func(*servicetest.Service, *nomad.Alloc) {}, true, true},
		"stops":        {func(_ *servicetest.Service, a *nomad.Alloc) { a.Stopping = true }, false, false},
		"has no GPU":   {func(_ *servicetest.Service, a *nomad.Alloc) { a.Devices = nil }, false, false},
		"is system's":  {func(s *servicetest.Service, a *nomad.Alloc) { retype(s, "system") }, false, false},
		"is a batch":   {func(s *servicetest.Service, a *nomad.Alloc) { retype(s, "batch") }, true, true},
		"nobody knows": {func(_ *servicetest.Service, a *nomad.Alloc) { a.Job = "else" }, false, false},
		"went once":    {func(s *servicetest.Service, a *nomad.Alloc) { went(s, "j", 1) }, true, true},
		"went twice":   {func(s *servicetest.Service, a *nomad.Alloc) { went(s, "j", 2) }, true, false},
		"others went":  {func(s *servicetest.Service, a *nomad.Alloc) { went(s, "k", 2) }, true, true},
		"too many of its queue went": {func(s *servicetest.Service, a *nomad.Alloc) {
			went(s, "k", 2)
			went(s, "l", 1)
		}, true, false},
		"went long ago": {func(s *servicetest.Service, a *nomad.Alloc) {
			went(s, "j", 2)
			s.Pass(time.Hour)
			s.Expire()
		}, true, true},
		"went nearly as long ago": {func(s *servicetest.Service, a *nomad.Alloc) {
			went(s, "j", 2)
			s.Pass(time.Hour - 1)
			s.Expire()
		}, true, false},
		"a canary waits":          {func(s *servicetest.Service, a *nomad.Alloc) { canary(s, "g", false) }, true, false},
		"another group's does":    {func(s *servicetest.Service, a *nomad.Alloc) { canary(s, "h", false) }, true, true},
		"a canary is on its way":  {func(s *servicetest.Service, a *nomad.Alloc) { canary(s, "g", true) }, true, true},
		"a dry run said it would": {func(s *servicetest.Service, a *nomad.Alloc) { wouldGo(s) }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, queues, servicetest.Machine("a", 8))
			for i, id := range []string{"j", "k", "l"} {
				a := job("x", id, 20)
				s.Register(a)
				s.Run(a, "alloc-"+id, "a", i, 0, 4)
			}
			a := s.Alloc("alloc-j")
			row.change(s, &a)
			a.Index += 100
			s.State.Apply([]nomad.Change{{Alloc: &a}}, a.Index)
			s.State.View(func(r *state.Reader) {
				if r.Cluster.Stoppable(&a) != row.stoppable || r.Capacity.Evictable(&a) != row.evictable {
					t.Errorf("stoppable %v, evictable %v", r.Cluster.Stoppable(&a), r.Capacity.Evictable(&a))
				}
				if u, booked := r.Capacity.Usage("alloc-j"); name != "nobody knows" && name != "has no GPU" && (!booked || u.Pinned == row.evictable) {
					t.Errorf("booked %v as %+v", booked, u)
				}
			})
		})
	}
}

func retype(s *servicetest.Service, kind string) {
	j := s.Job(nomad.JobKey{Namespace: "x", ID: "j"})
	j.Type = kind
	j.Index += 50
	s.State.Apply([]nomad.Change{{Job: &j}}, j.Index)
}

func went(s *servicetest.Service, id string, times int) {
	for range times {
		s.State.Do(func(tx *state.Tx) {
			tx.Note(view.Event{Kind: "evict", Namespace: "x", JobID: id, AllocID: "alloc-" + id})
		})
	}
}

func wouldGo(s *servicetest.Service) {
	for _, e := range []view.Event{{Kind: "evict", DryRun: true}, {Kind: "move"}, {Kind: "hold"}} {
		for range 3 {
			e.Namespace, e.JobID, e.AllocID = "x", "j", "alloc-j"
			s.State.Do(func(tx *state.Tx) { tx.Note(e) })
		}
	}
}

func canary(s *servicetest.Service, group string, stopping bool) {
	a := s.Alloc("alloc-j")
	a.ID, a.Group, a.Canary, a.Stopping, a.Index = "canary", group, true, stopping, a.Index+60
	s.State.Apply([]nomad.Change{{Alloc: &a}}, a.Index)
}

// A change of queues is a change of who pays.
func TestConfigureBooksAgain(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	a := job("x", "j", 90)
	s.Register(a)
	s.Run(a, "alloc", "a", 0, 0, 8)
	c, err := config.Parse("test.hcl", []byte(queues))
	if err != nil {
		t.Fatal(err)
	}
	version := read(s, (*state.Reader).Version)
	s.State.Do(func(tx *state.Tx) {
		if tx.Configure(c) {
			t.Error("other queues need no other planner")
		}
	})
	if read(s, (*state.Reader).Version) == version {
		t.Error("nothing has changed")
	}
	s.State.View(func(r *state.Reader) {
		if u, _ := r.Capacity.Usage("alloc"); u.Queue != "x" || u.Priority != 40 {
			t.Errorf("booked as %+v", u)
		}
	})
	version = read(s, (*state.Reader).Version)
	epoch := read(s, func(r *state.Reader) uint64 { return r.Capacity.Epoch() })
	same, err := config.Parse("test.hcl", []byte(queues))
	if err != nil {
		t.Fatal(err)
	}
	s.State.Do(func(tx *state.Tx) { tx.Configure(same) })
	if read(s, (*state.Reader).Version) != version || read(s, func(r *state.Reader) uint64 { return r.Capacity.Epoch() }) != epoch {
		t.Error("everything is judged anew for a configuration that is as it was")
	}
	if c, err = config.Parse("test.hcl", []byte("placement {\n policy = \"PACK\"\n}")); err != nil {
		t.Fatal(err)
	}
	s.State.Do(func(tx *state.Tx) {
		before := tx.Planner()
		if !tx.Configure(c) || tx.Planner() == before {
			t.Error("another policy needs another planner")
		}
	})
}

// What queues used is stored now and then, and taken over.
func TestUseIsStored(t *testing.T) {
	s := servicetest.New(t, queues, servicetest.Machine("a", 1))
	a := job("x", "j", 20)
	s.Register(a)
	s.Run(a, "alloc", "a", 0, 0, 16)
	account := func(d time.Duration) (now *record.History) {
		s.Pass(d)
		s.State.Do(func(tx *state.Tx) {
			tx.Expire()
			now, _ = tx.TakeUnsaved()
			if now != nil {
				tx.Saved(now)
			}
		})
		return now
	}
	if h := account(0); h != nil {
		t.Errorf("nothing was used, and yet %+v", h)
	}
	h := account(minutes(5))
	if h == nil || h.Used["x"].MilliSeconds < 299_000 || !h.UsedAt.Equal(s.Clock.At) {
		t.Fatalf("after five minutes %+v", h)
	}
	if again := account(minutes(4)); again != nil {
		t.Errorf("stored again after four: %+v", again)
	}
	next := servicetest.After(t, s, 0, queues, servicetest.Machine("a", 1))
	next.State.Do(func(tx *state.Tx) { tx.RecallHistory(h) })
	x, y := job("x", "x", 20), job("y", "y", 20)
	for _, a := range []admit.Ask{x, y} {
		next.Register(a)
		next.Block(a, 1)
	}
	if w := read(next, func(r *state.Reader) []*state.Waiting { return slices.Collect(r.Queue.Waiting()) }); len(w) != 2 || w[0].Job.ID != "y" {
		t.Errorf("first is %+v", w)
	}
}

// What earlier leaders evicted counts at once for what runs: of its job, and of its queue.
func TestWhatEarlierLeadersEvictedCounts(t *testing.T) {
	for name, row := range map[string]struct {
		stored record.History
		spent  bool
	}{
		"nothing":      {record.History{}, false},
		"of the job":   {record.History{Evicted: map[string][]time.Time{"default/job": nil}}, true},
		"of another":   {record.History{Evicted: map[string][]time.Time{"default/other": nil}}, false},
		"of the queue": {record.History{EvictedQueues: map[string][]time.Time{"q": nil}}, true},
		"of another's": {record.History{EvictedQueues: map[string][]time.Time{"r": nil}}, false},
	} {
		s := servicetest.New(t, "preemption {\n max_per_job = 1\n max_per_queue = 1\n}\n"+servicetest.OneGPU, servicetest.Machine("a", 1))
		s.Tenant(t, "job", 50, "a", 0, 0, 16)
		now := []time.Time{s.Clock.At}
		for _, of := range []map[string][]time.Time{row.stored.Evicted, row.stored.EvictedQueues} {
			for k := range of {
				of[k] = now
			}
		}
		s.State.Do(func(tx *state.Tx) {
			tx.RecallHistory(&row.stored)
			if u, found := tx.Capacity.Usage("alloc-job"); !found || u.Spent != row.spent {
				t.Errorf("%s: %+v", name, u)
			}
		})
	}
}
