// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// another is a job of a namespace without a queue that runs on a whole GPU.
func another(t *testing.T, b *servicetest.Service, id string, index int) {
	t.Helper()
	a := servicetest.Ask(id, "16G", 1)
	a.Namespace, a.Priority = "other", 10
	b.Submit(t, a)
	b.Register(a)
	b.Run(a, "alloc-"+id, "a", index, 0, 16)
}

// Regression (random history 801): for a job that waited for quota which was owed to work
// that was admitted and waited for room, other work was evicted, and the queue was above
// its bound once both ran. What is owed to a lower priority is given up instead; what is
// owed to a higher one stays so, and nothing is evicted in vain.
func TestQuotaIsNotGivenTwice(t *testing.T) {
	for name, row := range map[string]struct {
		admitted int // its priority
		free     bool
		yields   bool
		allocs   int // of the one that waits
	}{
		"a lower priority gives up what it is owed":                     {30, false, true, 1},
		"a lower priority gives it up for room that is free":            {30, true, true, 1},
		"a lower priority gives up what it is owed to two":              {30, false, true, 2},
		"a lower priority gives it up for room that is free for two":    {30, true, true, 2},
		"what is owed to a higher priority is not evicted for":          {90, false, false, 1},
		"what is owed to a higher priority is not evicted for two":      {90, false, false, 2},
		"what is owed to the same priority is not evicted for":          {80, false, false, 1},
		"what is owed to a higher priority is not let go for free room": {90, true, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.Quick+servicetest.OneGPU, servicetest.Machine("a", 2))
			another(t, b, "one", 0)
			if !row.free {
				another(t, b, "two", 1)
			}
			admitted := servicetest.Ask("admitted", "12G", 1)
			admitted.Priority, admitted.Child = row.admitted, true // else it would be held
			b.Submit(t, admitted)
			b.Register(admitted)
			b.Block(admitted, 1)
			b.State.Do(func(tx *state.Tx) { tx.ForgetGroup(servicetest.KeyOf(admitted), "g") }) // Nomad found no room for it, for a reason of its own
			b.LetTimePass()
			high := servicetest.Ask("high", "8G", row.allocs)
			high.Priority = 80
			b.Submit(t, high)
			b.Register(high)
			b.Block(high, row.allocs)
			b.Pass(servicetest.Settled)
			if hold := b.Record(servicetest.KeyOf(high)).Groups["g"].Decision.Hold; hold == nil || hold.Kind != view.WaitsForQuota {
				t.Fatalf("it is not held for quota: %+v", hold)
			}
			item := b.Next(map[string]bool{"default/admitted": true}, true)
			if !row.yields {
				if item != nil {
					t.Fatalf("got %+v, %+v", item, item.Evict)
				}
				return
			}
			if item == nil || item.Job != servicetest.KeyOf(high) || len(item.Evict.Yielding) != 1 || item.Evict.Yielding[0].Job != servicetest.KeyOf(admitted) {
				t.Fatalf("got %+v", item)
			}
			if victims := len(item.Evict.Victims); (victims == 0) != row.free {
				t.Errorf("%d victims", victims)
			}
		})
	}
}

// What a queue owes counts for it and for those above it, not for its neighbors.
func TestWhatANeighborIsOwedHoldsNothing(t *testing.T) {
	const queues = `
queue "org" {
  max_gpus = 2.5
}
queue "x" {
  parent     = "org"
  max_gpus   = 2
  namespaces = ["x"]
}
queue "y" {
  parent     = "org"
  max_gpus   = 2
  namespaces = ["y"]
}
`
	for name, row := range map[string]struct {
		request string
		held    bool
	}{"its own bound is kept": {"8G", false}, "that of both is not": {"12G", true}} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, queues, servicetest.Machine("a", 4))
			waits := servicetest.Ask("waits", "16G", 2)
			waits.Namespace = "x"
			b.Submit(t, waits)
			b.Register(waits)
			b.Block(waits, 2)
			b.State.Do(func(tx *state.Tx) { tx.ForgetGroup(servicetest.KeyOf(waits), "g") })
			b.State.View(func(r *state.Reader) {
				if owed := r.Owed("x", servicetest.KeyOf(admit.Ask{})); owed == (place.Charge{}) || r.Owed("y", servicetest.KeyOf(admit.Ask{})) != (place.Charge{}) {
					t.Fatalf("x owes %s", owed)
				}
			})
			a := servicetest.Ask("next", row.request, 1)
			a.Namespace = "y"
			if d := b.Submit(t, a); (d.Hold != nil) != row.held {
				t.Errorf("got %+v", d.Hold)
			}
		})
	}
}

// What runs in part gives up its claim for the rest, with canaries too: where a canary is held,
// Nomad starts nothing that is missing of the version that runs.
func TestWhatRunsInPartGivesUpTheRest(t *testing.T) {
	for name, canaries := range map[string]int{"without canaries": 0, "with canaries": 1} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.Quick+servicetest.OneGPU, servicetest.Machine("a", 2))
			another(t, b, "one", 0)
			admitted := servicetest.Ask("admitted", "6G", 2)
			admitted.Priority, admitted.Canaries = 30, canaries
			b.Submit(t, admitted)
			b.Register(admitted)
			b.Run(admitted, "alloc-admitted", "a", 1, 0, 6)
			b.Block(admitted, 1)
			b.State.Do(func(tx *state.Tx) { tx.ForgetGroup(servicetest.KeyOf(admitted), "g") })
			b.LetTimePass()
			high := servicetest.Ask("high", "8G", 1)
			high.Priority = 80
			b.Submit(t, high)
			b.Register(high)
			b.Block(high, 1)
			b.Pass(servicetest.Settled)
			item := b.Next(map[string]bool{"default/admitted": true}, true)
			if yields := item != nil && item.Evict != nil && len(item.Evict.Yielding) == 1; !yields {
				t.Errorf("due is %+v", item)
			}
		})
	}
}

// What failed and is started again later gives up its quota as what waits for room does, each in its
// turn; not where a part of it runs.
func TestWhatIsStartedAgainGivesUpItsQuota(t *testing.T) {
	for name, row := range map[string]struct {
		fails, waits int    // priorities; 0: there is none
		count        int    // of what fails
		blocked      bool   // it is to be started again now, and waits for room
		yields       string // empty: nothing
	}{
		"it is the only one":             {fails: 40, count: 1, yields: "fails"},
		"it comes before what waits":     {fails: 40, waits: 30, count: 1, yields: "waits"},
		"it comes after what waits":      {fails: 30, waits: 40, count: 1, yields: "fails"},
		"a part of it runs":              {fails: 40, count: 2},
		"a part runs, another one waits": {fails: 30, waits: 40, count: 2, yields: "waits"},
		"it has a higher priority":       {fails: 90, count: 1},
		"it waits for room by now":       {fails: 40, count: 1, blocked: true, yields: "fails"},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.Quick+servicetest.OneGPU, servicetest.Machine("a", 2))
			size := map[bool]string{true: "6G", false: "12G"}[row.waits > 0]
			if row.count == 2 {
				size = map[bool]string{true: "5G", false: "6G"}[row.waits > 0]
			}
			fails := servicetest.Ask("fails", size, row.count)
			fails.Priority = row.fails
			s.Submit(t, fails)
			s.Register(fails)
			registered(s, fails, func(j *nomad.Job) { j.Groups[0].Restarts = true })
			for i := range row.count {
				s.Run(fails, fmt.Sprintf("alloc-%d", i), "a", i, 0, int(fails.Tasks[0].Request.MemoryMiB/1024))
			}
			failed := s.Alloc("alloc-0")
			failed.Status, failed.Failed, failed.Returns = "failed", true, true
			s.State.Apply([]nomad.Change{{Alloc: &failed}}, s.Index)
			if row.blocked {
				s.Block(fails, 1)
			}
			if row.waits > 0 {
				waits := servicetest.Ask("waits", map[int]string{1: "6G", 2: "4G"}[row.count], 1)
				waits.Priority = row.waits
				s.Submit(t, waits)
				s.Register(waits)
				s.Block(waits, 1)
			}
			s.LetTimePass()
			s.State.Do(func(tx *state.Tx) { tx.ForgetGroup(nomad.JobKey{Namespace: "default", ID: "waits"}, "g") })
			s.State.Do(func(tx *state.Tx) { tx.ForgetGroup(servicetest.KeyOf(fails), "g") })
			high := servicetest.Ask("high", map[bool]string{true: "6G", false: "8G"}[row.count == 2], 1)
			high.Priority = 80
			s.Submit(t, high)
			s.Register(high)
			s.Block(high, 1)
			s.Pass(servicetest.Settled)
			if hold := recorded(s, high).Decision.Hold; hold == nil || hold.Kind != view.WaitsForQuota {
				t.Fatalf("it is not held for quota: %+v", hold)
			}
			item, got := s.Next(map[string]bool{"default/waits": true, "default/fails": true}, true), ""
			if item != nil && item.Evict != nil {
				for _, y := range item.Evict.Yielding {
					got += y.Job.ID
				}
			}
			if got != row.yields {
				t.Errorf("%q yields, want %q: %+v", got, row.yields, item)
			}
		})
	}
}

// What cannot be made to wait gives up nothing, and nothing is done in vain for one that waits for
// its part of the quota.
func TestOnlyWhatCanWaitGivesUpItsQuota(t *testing.T) {
	for name, row := range map[string]struct {
		change func(s *servicetest.Service, a admit.Ask)
		yields bool
	}{
		"what waits for room": {change: func(*servicetest.Service, admit.Ask) {}, yields: true},
		"dispatched":          {change: dispatched},
		"registered otherwise": {change: func(s *servicetest.Service, a admit.Ask) {
			registered(s, a, func(j *nomad.Job) { j.Groups[0].Registered = "otherwise" })
		}},
		"registered without a mark": {change: func(s *servicetest.Service, a admit.Ask) {
			registered(s, a, func(j *nomad.Job) { j.Groups[0].Registered, j.Groups[0].Was = "otherwise", nil })
		}},
		"decided about a moment ago": {change: func(s *servicetest.Service, a admit.Ask) {
			s.State.Do(func(tx *state.Tx) {
				r := tx.Record(servicetest.KeyOf(a)).Clone()
				r.At, r.Settled = tx.Now(), tx.Now()
				tx.Keep(r)
			})
		}},
		"a gang": {change: func(s *servicetest.Service, a admit.Ask) {
			s.State.Do(func(tx *state.Tx) {
				r := tx.Record(servicetest.KeyOf(a)).Clone()
				g := r.Groups["g"]
				g.Ask.Gang = true
				r.Groups["g"] = g
				tx.Keep(r)
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.Quick+servicetest.OneGPU, servicetest.Machine("a", 2))
			another(t, s, "one", 0)
			another(t, s, "two", 1)
			a := servicetest.Ask("admitted", "12G", 1)
			a.Priority, a.Child = 30, true // else it would be held
			s.Submit(t, a)
			s.Register(a)
			s.Block(a, 1)
			s.LetTimePass()
			s.State.Do(func(tx *state.Tx) { tx.ForgetGroup(servicetest.KeyOf(a), "g") })
			high := servicetest.Ask("high", "8G", 1)
			high.Priority = 80
			s.Submit(t, high)
			s.Register(high)
			s.Block(high, 1)
			s.Pass(servicetest.Settled)
			row.change(s, a)
			item := s.Next(map[string]bool{"default/admitted": true}, true)
			if yields := item != nil && item.Evict != nil && len(item.Evict.Yielding) == 1; yields != row.yields || !yields && item != nil && item.Evict != nil {
				t.Errorf("due is %+v", item)
			}
		})
	}
}
