// SPDX-License-Identifier: MPL-2.0

package reconcile_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// A look that may evict nothing, or leaves a job out, says nothing of the next one; and what is due is due
// until it is done.
func TestOneLookSaysNothingOfAnother(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	b.Tenant(t, "low", 20, "a", 0, 0, 16)
	b.Waits(t, "high", "1", 80)
	rests := map[string]bool{"default/high": true}
	if due := b.Next(nil, false); due != nil {
		t.Fatalf("nothing may be evicted, and yet %+v", due)
	}
	b.Pass(6 * time.Second) // since when nothing has changed
	for range 3 {
		if due := b.Next(nil, false); due != nil {
			t.Errorf("nothing may be evicted, and yet %+v", due)
		}
		if due := b.Next(rests, true); due != nil {
			t.Errorf("it rests, and yet %+v", due)
		}
		if due := b.Next(nil, true); due == nil || due.Evict == nil {
			t.Errorf("due is %+v", due)
		}
	}
}

// What time alone brings is found within five seconds.
func TestWhatTimeBringsIsFound(t *testing.T) {
	for name, looks := range map[string][]time.Duration{ // before it is due
		"a look at once":   {0},
		"quiet since long": {time.Minute, 10 * time.Second, 5 * time.Second},
		"quiet a moment":   {20 * time.Second, 10 * time.Second, 5 * time.Second},
		"every five":       {20 * time.Second, 15 * time.Second, 10 * time.Second, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "", servicetest.Machine("a", 1))
			b.Tenant(t, "tenant", 90, "a", 0, 0, 16)
			a := servicetest.Ask("job", "8G", 1)
			a.FallbackAfter = 10 * time.Minute
			b.Submit(t, a)
			b.Register(a)
			changed(b, a, func(j *nomad.Job) { j.Groups[0].FallbackAfter = a.FallbackAfter })
			b.Block(a, 1)
			due := b.Clock.At.Add(10 * time.Minute)
			for _, before := range looks {
				b.Clock.At = due.Add(-before)
				b.State.Heard()
				if item := b.Next(nil, true); item != nil && before > 0 {
					t.Fatalf("%s before, %+v", before, item)
				}
			}
			b.Clock.At = due
			b.State.Heard()
			if item := b.Next(nil, true); item == nil || !item.Revision.OnCPU {
				t.Errorf("due is %+v", item)
			}
		})
	}
}

// Ten jobs in a row are brought together with their records; then it is the turn of something else.
func TestHowManyAreAlignedInARow(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	b.Tenant(t, "low", 20, "a", 0, 0, 16)
	for i := range 3 {
		a := servicetest.Ask(fmt.Sprint("drifted-", i), "8G", 1)
		d := b.Submit(t, a)
		was := servicetest.WasOf(d)
		was.Hold = "" // it was let go
		b.Block(b.RegisterAs(a, was), 1)
	}
	b.Waits(t, "high", "1", 80)
	b.LetTimePass()
	for range 2 {
		for i := range 11 {
			item := b.Next(nil, true)
			if item == nil || item.Revision.Align != (i < 10) || (item.Evict != nil) != (i == 10) {
				t.Fatalf("look %d: due is %+v", i, item)
			}
		}
	}
}

// Nothing is evicted for a group before Nomad had two seconds to place it, nor for one to which room is
// promised.
func TestWhenSomethingIsEvicted(t *testing.T) {
	for name, row := range map[string]struct {
		wait   time.Duration
		then   func(b *servicetest.Service, a admit.Ask)
		config string
		child  bool
		due    bool
	}{
		"after two seconds":    {wait: 2 * time.Second, due: true},
		"a moment before":      {wait: 2*time.Second - 1},
		"room is promised":     {wait: 3 * time.Second, then: func(b *servicetest.Service, a admit.Ask) { promisedTo(b, a) }},
		"no work is evicted":   {wait: 3 * time.Second, config: "preemption {\n enabled = false\n}\n"},
		"it cannot be changed": {wait: 3 * time.Second, child: true, then: func(b *servicetest.Service, a admit.Ask) { changed(b, a, func(j *nomad.Job) { j.Dispatched = true }) }},
		"it is a child": {wait: 3 * time.Second, child: true, then: func(b *servicetest.Service, a admit.Ask) {
			changed(b, a, func(j *nomad.Job) { j.Dispatched, j.Scaled = true, true })
		}, due: true},
	} {
		t.Run(name, func(t *testing.T) {
			if row.config == "" {
				row.config = servicetest.Quick
			}
			b := servicetest.New(t, row.config, servicetest.Machine("a", 1))
			b.Tenant(t, "low", 20, "a", 0, 0, 16)
			b.LetTimePass()
			a := servicetest.Ask("high", "1", 1)
			a.Priority, a.Child = 80, row.child
			b.Submit(t, a)
			b.Register(a)
			b.Block(a, 1)
			b.Pass(row.wait)
			if row.then != nil {
				row.then(b, a)
			}
			item := b.Next(nil, true)
			if due := item != nil && item.Evict != nil && item.Evict.Victims[0].AllocID == "alloc-low"; due != row.due {
				t.Errorf("due is %+v", item)
			}
		})
	}
}

func promisedTo(b *servicetest.Service, a admit.Ask) {
	b.State.Do(func(tx *state.Tx) {
		u, _ := tx.Capacity.Usage("alloc-low")
		tx.Assume(servicetest.KeyOf(a), "g", u, true)
	})
}

// What is held is let go as soon as it may start, but where more of it than it asked for is about to
// stop, which is seen in three seconds.
func TestWhenWhatIsHeldIsLetGo(t *testing.T) {
	for name, row := range map[string]struct {
		runs    int // of what it asked for before
		missing int
		wait    time.Duration
		skip    bool
		goes    bool
	}{
		"there is quota":       {missing: 2, goes: true},
		"it rests":             {missing: 2, skip: true},
		"what runs is to stop": {runs: 1, missing: 2},
		"a moment later":       {runs: 1, missing: 2, wait: state.Echo - 1},
		"it does not":          {runs: 1, missing: 2, wait: state.Echo, goes: true},
		"one of it runs":       {runs: 1, missing: 1, goes: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "queue \"q\" {\n gpus = 3\n borrow = false\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 4))
			for i := range 2 {
				b.Tenant(t, fmt.Sprint("tenant-", i), 90, "a", i, 0, 16)
			}
			a := servicetest.Ask("job", "1", 2)
			if d := b.Submit(t, a); d.Hold == nil {
				t.Fatal("it does not wait")
			}
			b.Register(a)
			for i := range row.runs {
				b.Run(a, fmt.Sprint("alloc-", i), "a", 2+i, 0, 16)
			}
			b.Block(a, row.missing)
			b.End("alloc-tenant-0")
			b.End("alloc-tenant-1")
			b.Pass(row.wait)
			item := b.Next(map[string]bool{"default/job": row.skip}, false)
			if goes := item != nil && item.Job.ID == "job" && item.Revision.Retry; goes != row.goes {
				t.Errorf("due is %+v", item)
			}
		})
	}
}

// The nodes that are taken back in are named in order.
func TestNodesAreTakenBackInInOrder(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	low := b.Tenant(t, "low", 20, "a", 0, 0, 16)
	b.State.Do(func(tx *state.Tx) {
		r := tx.Queue.Record(servicetest.KeyOf(low)).Clone()
		g := r.Groups["g"]
		g.Excluded = map[string]string{}
		for i := range 9 {
			g.Excluded[fmt.Sprint("id-", i)] = "default/gone"
		}
		r.Groups["g"] = g
		tx.Keep(r)
	})
	b.Show(low, true)
	b.LetTimePass()
	if item := b.Next(nil, false); item == nil || len(item.Revision.Include) != 9 || !slices.IsSorted(item.Revision.Include) {
		t.Errorf("due is %+v", item)
	}
}
