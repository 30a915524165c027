// SPDX-License-Identifier: MPL-2.0

package reconcile_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reconcile"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// ganged is an ask of a gang.
func ganged(id, request string, count, least int) admit.Ask {
	a := servicetest.Ask(id, request, count)
	a.Gang, a.GangMin = true, least
	return a
}

// changed changes how a job is registered.
func changed(b *servicetest.Service, a admit.Ask, change func(*nomad.Job)) {
	j := b.Job(servicetest.KeyOf(a))
	j.Groups = slices.Clone(j.Groups)
	change(&j)
	b.Index++
	j.Index = b.Index
	b.State.Apply([]nomad.Change{{Job: &j}}, b.Index)
}

// A gang of which too few run goes back as one, after Nomad had a minute for the rest: not where
// enough run, nor where an earlier version of it runs as a whole.
func TestAGangThatRunsInPartGoesBackAsOne(t *testing.T) {
	for name, row := range map[string]struct {
		count, least     int
		started, earlier int // allocs that run: as asked, and of a version before
		scaled           int // the count that it is scaled to around the service; 0: it is not
		change           func(b *servicetest.Service, a admit.Ask)
		wait             time.Duration
		skip             bool
		back             int // how many are stopped; 0: it goes on
	}{
		"one of two runs":                {count: 2, started: 1, wait: time.Minute, back: 1},
		"all run":                        {count: 2, started: 2, wait: time.Minute},
		"none runs":                      {count: 2, wait: time.Minute},
		"Nomad still has time":           {count: 2, started: 1, wait: time.Minute - time.Second},
		"enough run":                     {count: 4, least: 2, started: 2, wait: time.Minute},
		"fewer than enough":              {count: 4, least: 2, started: 1, wait: time.Minute, back: 1},
		"the version before runs":        {count: 2, earlier: 2, wait: time.Minute},
		"a part of it":                   {count: 2, earlier: 1, wait: time.Minute, back: 1},
		"a part of either":               {count: 3, earlier: 1, started: 1, wait: time.Minute, back: 2},
		"scaled beyond what it may":      {count: 2, started: 2, scaled: 4, wait: time.Minute, back: 2},
		"it rests":                       {count: 2, started: 1, wait: time.Minute, skip: true},
		"it cannot be changed":           {count: 2, started: 1, wait: time.Minute, change: func(b *servicetest.Service, a admit.Ask) { changed(b, a, func(j *nomad.Job) { j.Dispatched = true }) }},
		"it is no gang":                  {count: 2, started: 1, wait: time.Minute, change: func(b *servicetest.Service, a admit.Ask) { plainly(b, a) }},
		"the rest is on its way":         {count: 2, started: 1, wait: time.Minute, change: func(b *servicetest.Service, a admit.Ask) { promise(b, a) }},
		"what is left is on its way out": {count: 2, started: 1, wait: time.Minute, change: func(b *servicetest.Service, _ admit.Ask) { b.Stop("alloc-0") }},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "queue \"q\" {\n gpus = 3\n borrow = false\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 4))
			a := ganged("gang", "8G", row.count, row.least)
			if row.scaled > 0 {
				a = ganged("gang", "1", row.count, row.least)
			}
			if d := b.Submit(t, a); d.Hold != nil {
				t.Fatalf("held: %+v", d.Hold)
			}
			b.Register(a)
			slices := 8
			if row.scaled > 0 {
				slices = 16
			}
			changed(b, a, func(j *nomad.Job) {
				j.Groups[0].Tasks = []nomad.Task{{Name: "t", Devices: []nomad.DeviceAsk{{Name: "nvidia/slice", Count: int64(slices)}}}}
			})
			for i := range row.started {
				b.Run(a, fmt.Sprint("alloc-", i), "a", i, 0, slices)
			}
			for i := range row.earlier {
				b.Run(a, fmt.Sprint("old-", i), "a", row.started+i, 0, 4)
			}
			b.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(a)) })
			b.LetTimePass()
			if row.scaled > 0 {
				changed(b, a, func(j *nomad.Job) { j.Groups[0].Count = row.scaled })
			}
			b.Block(a, 1)
			b.Pass(row.wait)
			if row.change != nil {
				row.change(b, a)
			}
			item := b.Next(map[string]bool{"default/gang": row.skip}, true)
			if row.back == 0 {
				if item != nil && item.Revision.SentBack != "" {
					t.Errorf("it goes on, and yet %+v", item.Evict)
				}
				return
			}
			if item == nil || item.Evict == nil || len(item.Evict.Victims) != row.back || item.Revision.SentBack == "" || item.Revision.Hold == nil || item.Revision.Hold.Kind != view.WaitsForRoom || item.Revision.Group != "g" {
				t.Fatalf("due is %+v", item)
			}
			if !strings.Contains(item.Evict.Text, fmt.Sprintf("Nomad started %d of its %d allocs", row.started, cmp.Or(row.least, max(row.count, row.scaled)))) {
				t.Errorf("it says %q", item.Evict.Text)
			}
		})
	}
}

// plainly has a job recorded as no gang.
func plainly(b *servicetest.Service, a admit.Ask) {
	b.State.Do(func(tx *state.Tx) {
		r := tx.Queue.Record(servicetest.KeyOf(a)).Clone()
		g := r.Groups["g"]
		g.Ask.Gang = false
		r.Groups["g"] = g
		tx.Keep(r)
	})
}

// promise books room for one alloc more.
func promise(b *servicetest.Service, a admit.Ask) {
	b.State.Do(func(tx *state.Tx) {
		u, _ := tx.Capacity.Usage("alloc-0")
		tx.Assume(servicetest.KeyOf(a), "g", u, true)
	})
}

// The nodes that a job leaves out for another are taken back in when that runs, or Nomad had its
// time for it: not while it waits and something there is to end.
func TestNodesAreTakenBackIn(t *testing.T) {
	for name, row := range map[string]struct {
		then func(b *servicetest.Service, low, high admit.Ask)
		back bool
	}{
		"it waits":                    {func(*servicetest.Service, admit.Ask, admit.Ask) {}, false},
		"it runs":                     {func(b *servicetest.Service, _, high admit.Ask) { unblock(b, high) }, true},
		"it runs, and more is to":     {func(b *servicetest.Service, _, high admit.Ask) { unblock(b, high); promised(b, high) }, false},
		"it waited long enough":       {func(b *servicetest.Service, _, _ admit.Ask) { b.Pass(state.Unplaced) }, true},
		"and what was to end has not": {func(b *servicetest.Service, _, _ admit.Ask) { b.Stop("alloc-low"); b.Pass(state.Unplaced) }, false},
		"something elsewhere has not": {func(b *servicetest.Service, _, _ admit.Ask) { b.Stop("alloc-other"); b.Pass(state.Unplaced) }, true},
		"the job was stopped": {func(b *servicetest.Service, low, high admit.Ask) {
			unblock(b, high)
			changed(b, low, func(j *nomad.Job) { j.Stopped = true })
		}, false},
		"the job is gone": {func(b *servicetest.Service, low, high admit.Ask) { unblock(b, high); gone(b, low) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "preemption {\n enabled = false\n}\n", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
			low := b.Tenant(t, "low", 20, "a", 0, 0, 16)
			b.Tenant(t, "other", 90, "b", 0, 0, 16)
			high := b.Waits(t, "high", "1", 80)
			known := b.Record(servicetest.KeyOf(low)).Clone()
			g := known.Groups["g"]
			g.Excluded = map[string]string{"id-a": "default/high"}
			known.Groups["g"], known.At = g, b.Clock.At
			b.State.Do(func(tx *state.Tx) { tx.Keep(known) })
			b.Show(low, true)
			b.LetTimePass()
			row.then(b, low, high)
			item := b.Next(nil, false)
			if back := item != nil && item.Job.ID == "low" && slices.Equal(item.Revision.Include, []string{"id-a"}) && item.Revision.Group == "g"; back != row.back || !row.back && item != nil {
				t.Fatalf("due is %+v", item)
			}
			if item := b.Next(map[string]bool{"default/low": true}, false); item != nil {
				t.Errorf("it rests, and yet %+v", item)
			}
		})
	}
}

func unblock(b *servicetest.Service, a admit.Ask) {
	key := servicetest.KeyOf(a)
	b.Index++
	b.State.Apply([]nomad.Change{{Unblocked: &key}}, b.Index)
}

func promised(b *servicetest.Service, a admit.Ask) {
	b.State.Do(func(tx *state.Tx) {
		u, _ := tx.Capacity.Usage("alloc-low")
		tx.Assume(servicetest.KeyOf(a), "g", u, true)
	})
}

func gone(b *servicetest.Service, a admit.Ask) {
	key := servicetest.KeyOf(a)
	b.Index++
	b.State.Apply([]nomad.Change{{JobGone: &key}}, b.Index)
}

// Work is moved where it may be: not what made room or was moved a moment ago, not a gang, and not
// what has a sibling beside it.
func TestWhatMayBeMoved(t *testing.T) {
	for name, row := range map[string]struct {
		change func(b *servicetest.Service, a admit.Ask)
		moves  bool
	}{
		"it may":                   {func(*servicetest.Service, admit.Ask) {}, true},
		"it was moved just now":    {func(b *servicetest.Service, _ admit.Ask) { moved(b, "job") }, false},
		"it was moved an hour ago": {func(b *servicetest.Service, _ admit.Ask) { moved(b, "job"); b.Pass(time.Hour) }, true},
		"it made room for another": {func(b *servicetest.Service, a admit.Ask) { left(b, a) }, false},
		"it is a gang": {func(b *servicetest.Service, a admit.Ask) {
			changed(b, a, func(j *nomad.Job) { j.Groups[0].Gang = true })
		}, false},
		"it cannot be changed": {func(b *servicetest.Service, a admit.Ask) { changed(b, a, func(j *nomad.Job) { j.Dispatched = true }) }, false},
		"it is about to end":   {func(b *servicetest.Service, _ admit.Ask) { b.Stop("alloc-job") }, false},
		"nothing is known of it": {func(b *servicetest.Service, a admit.Ask) {
			b.State.Do(func(tx *state.Tx) { tx.ForgetRecord(servicetest.KeyOf(a)) })
		}, false},
		"another of it is beside it": {func(b *servicetest.Service, a admit.Ask) {
			a.Count = 2
			b.Register(a)
			b.Run(a, "alloc-too", "a", 0, 8, 1)
		}, false},
		"another of it is elsewhere": {func(b *servicetest.Service, a admit.Ask) {
			a.Count = 2
			b.Register(a)
			b.Run(a, "alloc-too", "b", 1, 0, 8)
		}, true},
		"another group is beside it": {func(b *servicetest.Service, a admit.Ask) { a.Group = "h"; b.Run(a, "alloc-too", "a", 0, 0, 0) }, true},
		"something waits":            {func(b *servicetest.Service, _ admit.Ask) { b.Waits(t, "waits", "2", 50) }, false},
		"Nomad has not answered":     {func(b *servicetest.Service, _ admit.Ask) { b.Clock.At = b.Clock.At.Add(2 * time.Minute) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2), servicetest.Machine("b", 2))
			for i, machine := range []string{"a", "b"} { // they stay: nothing is recorded of them
				stays := servicetest.Ask(fmt.Sprint("stays-", i), "0.5", 1)
				b.Register(stays)
				b.Run(stays, fmt.Sprint("alloc-stays-", i), machine, 1-i, 0, 7)
			}
			a := servicetest.Ask("job", "0.5", 1)
			b.Submit(t, a)
			b.Register(a)
			b.Run(a, "alloc-job", "a", 0, 0, 8)
			b.LetTimePass()
			row.change(b, a)
			moves := b.Moves(5)
			if got := slices.ContainsFunc(moves, func(m reconcile.Move) bool {
				return strings.HasPrefix(m.AllocID, "alloc-job") || m.AllocID == "alloc-too"
			}); got != row.moves {
				t.Errorf("moves %+v", moves)
			}
		})
	}
}

// left has a job leave a node out, as after it made room there.
func left(b *servicetest.Service, a admit.Ask) {
	b.State.Do(func(tx *state.Tx) {
		r := tx.Queue.Record(servicetest.KeyOf(a)).Clone()
		g := r.Groups["g"]
		g.Excluded = map[string]string{"id-c": "default/other"}
		r.Groups["g"] = g
		tx.Keep(r)
	})
}

// What is held and scaled down around the service is let go as soon as there is room for what is
// left of it; scaled up it waits for all.
func TestWhatIsScaledWhileItIsHeld(t *testing.T) {
	for name, row := range map[string]struct {
		gang  bool
		count int // that it is scaled to; it asked for three, and there is room for two
		goes  bool
	}{
		"a gang that shrinks":          {true, 2, true},
		"a gang that stays":            {true, 3, false},
		"a gang that grows":            {true, 4, false},
		"a group that shrinks":         {false, 2, true},
		"a group that its queue binds": {false, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "queue \"q\" {\n gpus = 4\n borrow = false\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 4))
			for i := range 2 {
				b.Tenant(t, fmt.Sprint("tenant-", i), 90, "a", i, 0, 16)
			}
			a := servicetest.Ask("job", "1", 3)
			a.Gang = row.gang
			if d := b.Submit(t, a); d.Hold == nil {
				t.Fatal("it does not wait")
			}
			b.Register(a)
			b.Block(a, row.count)
			changed(b, a, func(j *nomad.Job) { j.Groups[0].Count = row.count })
			b.LetTimePass()
			goes, item := false, b.Next(nil, false)
			if item != nil {
				now := servicetest.Reread(a, b.Record(servicetest.KeyOf(a)).Groups["g"].Decision)
				now.Count = row.count
				d, err := b.Revise(t.Context(), []admit.Ask{now}, item.Revision)
				if err != nil {
					t.Fatal(err)
				}
				goes = d != nil && d[0].Hold == nil
			}
			if goes != row.goes {
				t.Errorf("due is %+v", item)
			}
		})
	}
}

// A registration that is not as recorded is left alone while the news of it may be on its way, and
// where Nomad does not let it be changed.
func TestWhatIsOnItsWayIsNotAligned(t *testing.T) {
	for name, row := range map[string]struct {
		wait   time.Duration
		change func(*nomad.Job)
		due    bool
	}{
		"it drifted":           {state.Echo, func(*nomad.Job) {}, true},
		"its news may come":    {state.Echo - time.Second, func(*nomad.Job) {}, false},
		"it cannot be changed": {state.Echo, func(j *nomad.Job) { j.Dispatched = true }, false},
		"it was stopped":       {state.Echo, func(j *nomad.Job) { j.Stopped = true }, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "", servicetest.Machine("a", 1))
			a := servicetest.Ask("job", "8G", 1)
			d := b.Submit(t, a)
			b.Register(a)
			was := servicetest.WasOf(d)
			was.Candidates = []string{"none"}
			a = b.RegisterAs(a, was)
			changed(b, a, row.change)
			b.Block(a, 1)
			b.Pass(row.wait)
			item := b.Next(nil, true)
			if due := item != nil && item.Revision.Align && item.Job.ID == "job"; due != row.due || !row.due && item != nil {
				t.Errorf("due is %+v", item)
			}
		})
	}
}

// Of what a queue cannot pay for, children that Nomad started are held, and said to be so; what was
// dispatched is not, since Nomad lets it not be changed.
func TestWhatNomadStartedIsBroughtBack(t *testing.T) {
	for dispatched, want := range map[bool]bool{false: true, true: false} {
		b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
		parent := servicetest.Ask("parent", "1", 1)
		parent.JobType, parent.Later = "batch", true
		d := b.Submit(t, parent)
		b.Register(parent)
		for i, id := range []string{"parent/1", "parent/2"} {
			c := child(b, parent, id, d)
			b.Run(c, "alloc-"+id, "a", i, 0, 16)
			if dispatched {
				changed(b, c, func(j *nomad.Job) { j.Dispatched = true })
			}
			b.Pass(time.Second)
		}
		b.LetTimePass()
		item := b.Next(nil, true)
		if (item != nil) != want || want && (item.Job.ID != "parent/2" || item.Revision.Hold == nil || !strings.Contains(item.Evict.Text, "job default/parent/2, which Nomad started, must wait")) {
			t.Errorf("dispatched %v: due is %+v", dispatched, item)
		}
	}
}

// What waits for a GPU no longer than it is to runs without one: not while the news of it is on its
// way, nor while it rests.
func TestWhenAJobFallsBack(t *testing.T) {
	for name, row := range map[string]struct {
		wait time.Duration
		skip bool
		due  bool
	}{"long enough": {10 * time.Minute, false, true}, "not yet": {9 * time.Minute, false, false}, "it rests": {10 * time.Minute, true, false}} {
		b := servicetest.New(t, "", servicetest.Machine("a", 1))
		b.Tenant(t, "tenant", 90, "a", 0, 0, 16)
		a := servicetest.Ask("job", "8G", 1)
		a.FallbackAfter = 10 * time.Minute
		b.Submit(t, a)
		b.Register(a)
		changed(b, a, func(j *nomad.Job) { j.Groups[0].FallbackAfter = a.FallbackAfter })
		b.Block(a, 1)
		b.Pass(row.wait)
		item := b.Next(map[string]bool{"default/job": row.skip}, false)
		if due := item != nil && item.Revision.OnCPU; due != row.due || item != nil && !due {
			t.Errorf("%s: due is %+v", name, item)
		}
	}
}

// For what may start alloc by alloc room is made for one at a time; for a gang, for all of it at once.
func TestRoomIsMadeForOneAtATime(t *testing.T) {
	for hold, victims := range map[bool]int{false: 1, true: 2} {
		b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2))
		for i := range 2 {
			b.Tenant(t, fmt.Sprint("low-", i), 20, "a", i, 0, 16)
		}
		a := servicetest.Ask("high", "1", 2)
		a.Priority, a.Gang = 80, hold
		if d := b.Submit(t, a); d.Hold == nil || d.Hold.Kind != view.WaitsForRoom {
			t.Fatalf("held: %+v", d.Hold)
		}
		b.Register(a)
		b.Block(a, 2)
		b.Pass(servicetest.Settled)
		item := b.Next(nil, true)
		if item == nil || item.Evict == nil || len(item.Evict.Victims) != victims || (item.Revision.Prefer == "") != hold || len(item.Revision.RoomMade) != (victims-1)*2 {
			t.Errorf("held %v: due is %+v", hold, item)
		}
	}
}

// For a group that waits for quota, as many allocs give theirs up at once as it lacks.
func TestQuotaIsGivenUpForAGroup(t *testing.T) {
	for count := 1; count <= 3; count++ {
		b := servicetest.New(t, servicetest.Quick+"queue \"q\" {\n gpus = 3\n borrow = false\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 4))
		for i := range 3 {
			b.Tenant(t, fmt.Sprint("low-", i), 20, "a", i, 0, 16)
		}
		a := servicetest.Ask("high", "1", count)
		a.Priority = 80
		if d := b.Submit(t, a); d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
			t.Fatalf("held: %+v", d.Hold)
		}
		b.Register(a)
		b.Block(a, count)
		b.Pass(servicetest.Settled)
		item := b.Next(nil, true)
		if item == nil || item.Evict == nil || len(item.Evict.Victims) != count || item.Revision.Room != nil || len(item.Revision.RoomMade) != count {
			t.Errorf("%d allocs: due is %+v", count, item)
			continue
		}
		for _, v := range item.Evict.Victims {
			if v.Quota != "q" {
				t.Errorf("%d allocs: %s gives up the quota of %q", count, v.AllocID, v.Quota)
			}
		}
	}
}

// What is not found for one gang is looked for all the same for the next, and people are told of the
// one for which nothing is found.
func TestEachGangIsLookedForByItself(t *testing.T) {
	const futile = "no eviction that is allowed would make room"
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2))
	b.Tenant(t, "low", 20, "a", 0, 0, 16)
	b.Tenant(t, "top", 95, "a", 1, 0, 16)
	for i, request := range []string{"1", "8G"} {
		a := ganged(fmt.Sprint("gang-", i), request, 2, 0)
		a.Priority = 90 - 10*i
		if d := b.Submit(t, a); d.Hold == nil {
			t.Fatal("it is not held")
		}
		b.Register(a)
		b.Block(a, 2)
	}
	b.Pass(servicetest.Settled)
	item := b.Next(nil, true)
	if item == nil || item.Job.ID != "gang-1" || item.Evict == nil || len(item.Evict.Victims) != 1 || item.Evict.Victims[0].AllocID != "alloc-low" {
		t.Errorf("due is %+v", item)
	}
	for _, p := range b.Cluster(t).Pending {
		if (p.JobID == "gang-0") != strings.Contains(p.Note, futile) {
			t.Errorf("of %s it is said %q", p.JobID, p.Note)
		}
	}
	b.End("alloc-top")
	b.Next(nil, true)
	for _, p := range b.Cluster(t).Pending {
		if strings.Contains(p.Note, futile) {
			t.Errorf("there is room, and of %s it is said %q", p.JobID, p.Note)
		}
	}
}

// Moves are looked for the first eight that wait alone.
func TestMovesAreLookedForTheFirstEight(t *testing.T) {
	for before, want := range map[int]bool{7: true, 8: false} {
		b := halves(t, servicetest.Quick)
		saves(b, "y")
		b.State.Apply([]nomad.Change{{Node: servicetest.Machine("large", 4)}}, b.Index)
		for i := range 4 {
			b.Tenant(t, fmt.Sprint("stays-", i), 95, "large", i, 0, 16)
		}
		b.Pass(time.Hour)
		saves(b, "y")
		for i := range before {
			b.Waits(t, fmt.Sprint("large-", i), "4", 60)
		}
		b.Waits(t, "waits", "2", 50)
		if item := b.Relief(2); (item != nil) != want {
			t.Errorf("behind %d others: %+v", before, item)
		}
	}
}
