// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Regression: only the node that fitted best was looked at, so that jobs were held
// for a higher priority beside nodes that no group waited for; also where the waiting
// one could get no room, and by a priority that its queue does not allow.
func TestAJobIsHeldOnlyForRoomThatAnotherCouldGet(t *testing.T) {
	for name, row := range map[string]struct {
		config   string
		machines []*nomad.Node
		held     bool
	}{
		"the only room is what it waits for": {servicetest.Quick, []*nomad.Node{servicetest.Machine("a", 1)}, true},
		"there is other room":                {servicetest.Quick, []*nomad.Node{servicetest.Machine("a", 1), servicetest.Machine("b", 1)}, false},
		"nothing may be evicted for it":      {"preemption {\n enabled = false\n}\n", []*nomad.Node{servicetest.Machine("a", 1)}, false},
		"its queue caps its priority":        {servicetest.Quick + "queue \"q\" {\n max_priority = 20\n namespaces = [\"default\"]\n}\n", []*nomad.Node{servicetest.Machine("a", 1)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, row.config, row.machines...)
			b.Tenant(t, "tenant", 10, "a", 0, 0, 4)
			if len(row.machines) > 1 {
				b.Tenant(t, "high", 95, "b", 0, 0, 4)
			}
			b.Waits(t, "waiting", "16G", 90)
			a := servicetest.Ask("small", "1G", 1)
			if d := b.Submit(t, a); (d.Hold != nil) != row.held || row.held && d.Hold.Kind != view.WaitsForPriority {
				t.Errorf("held: %+v", d.Hold)
			}
		})
	}
}

// A group that has waited for a while keeps room that comes free, also from later
// ones of its own priority: two GPUs were never free beside a stream of one.
func TestALargeGroupIsNotStarvedBySmallOnes(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 2))
	for i := range 2 {
		a := servicetest.Ask(fmt.Sprintf("short-%d", i), "1", 1)
		a.JobType = "batch"
		b.Submit(t, a)
		b.Register(a)
		b.Run(a, fmt.Sprintf("alloc-%d", i), "a", i, 0, 16)
	}
	large := b.Waits(t, "large", "2", 50)
	b.End("alloc-0")
	if d := b.Submit(t, servicetest.Ask("at-once", "1", 1)); d.Hold != nil {
		t.Fatalf("the first comer waits although the large one has just come: %+v", d.Hold)
	}
	b.State.Do(func(tx *state.Tx) { tx.Forget(nomad.JobKey{Namespace: "default", ID: "at-once"}) })
	b.Pass(time.Minute)
	d := b.Submit(t, servicetest.Ask("later", "1", 1))
	if d.Hold == nil || d.Hold.Sentence != "job large with priority 50 waits for room that this would take" {
		t.Fatalf("got %+v", d.Hold)
	}
	b.End("alloc-1")
	b.Run(large, "alloc-large", "a", 0, 0, 16)
	b.State.Apply([]nomad.Change{{Unblocked: &nomad.JobKey{Namespace: "default", ID: "large"}}}, 99)
	later := servicetest.Ask("later", "1", 1)
	b.Register(later)
	b.Block(later, 1)
	b.LetTimePass()
	if due := b.Next(nil, false); due == nil || due.Job.ID != "later" || !due.Revision.Retry {
		t.Errorf("the hold does not end: %+v", due)
	}
}

// Regression: what was stopping stayed on the books beside the promise of its room,
// so that 13 evictions for one slice each killed 28 jobs.
func TestRoomIsMadeOnce(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	b.Tenant(t, "large", 20, "a", 0, 0, 16)
	b.Tenant(t, "other", 30, "b", 0, 0, 16)
	stopped := map[string]bool{}
	for i := range 13 {
		b.Waits(t, fmt.Sprintf("one-%02d", i), "1G", 80)
		for due := b.Next(nil, true); due != nil && due.Evict != nil; due = b.Next(nil, true) {
			b.Assume(due.Evict.Promises[0])
			for _, v := range due.Evict.Victims {
				stopped[v.AllocID] = true
				b.Stop(v.AllocID)
			}
		}
	}
	if len(stopped) != 1 || !stopped["alloc-large"] {
		t.Errorf("stopped %v for 13 slices of one GPU", stopped)
	}
}

// What cannot be helped is not asked about at Nomad: nothing is due for it until
// something changes.
func TestWhatHasToWaitIsLeftAlone(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 1))
	b.Tenant(t, "high", 95, "a", 0, 0, 15)
	b.Waits(t, "waiting", "16G", 90)
	for i := range 20 {
		b.Waits(t, fmt.Sprintf("held-%02d", i), "2G", 50)
	}
	for range 100 {
		b.Pass(time.Second)
		if due := b.Next(nil, true); due != nil {
			t.Fatalf("nothing can be done, and yet %+v", due)
		}
	}
	b.End("alloc-high")
	if due := b.Next(nil, false); due != nil && due.Evict != nil {
		t.Errorf("due is %+v", due)
	}
}

// A release needs no eviction, and does not wait behind those that are limited.
func TestReleasesDoNotWaitBehindEvictions(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick+"queue \"q\" {\n gpus = 0.5\n borrow = false\n namespaces = [\"team\"]\n}\n", servicetest.Machine("a", 1), servicetest.Machine("b", 1))
	b.Tenant(t, "low", 20, "a", 0, 0, 16)
	b.Tenant(t, "stays", 95, "b", 0, 8, 8)
	first, second := servicetest.Ask("first", "8G", 1), servicetest.Ask("second", "8G", 1)
	first.Namespace, second.Namespace, second.Priority = "team", "team", 10
	b.Submit(t, first)
	b.Register(first)
	b.Run(first, "alloc-first", "b", 0, 0, 8)
	b.Submit(t, second)
	b.Register(second)
	b.Block(second, 1)
	b.Waits(t, "high", "12G", 90)
	b.End("alloc-first")
	b.LetTimePass()
	if due := b.Next(nil, true); due == nil || due.Job.ID != "second" || !due.Revision.Retry {
		t.Fatalf("due is %+v", due)
	}
	if due := b.Next(map[string]bool{"team/second": true}, false); due != nil && due.Evict != nil {
		t.Errorf("an eviction although none is allowed now: %+v", due)
	}
}

// Regression: a group of three with priority 90 waited for quota while every new
// single of priority 30 in its queue ran.
func TestALargeGroupIsNotStarvedOfItsQuota(t *testing.T) {
	b := servicetest.New(t, "queue \"q\" {\n gpus = 3\n borrow = false\n namespaces = [\"default\"]\n}\n", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
	single := func(i int) admit.Ask {
		a := servicetest.Ask(fmt.Sprintf("single-%d", i), "1", 1)
		a.Priority = 30
		return a
	}
	for i := range 2 {
		a := single(i)
		b.Submit(t, a)
		b.Register(a)
		b.Run(a, fmt.Sprintf("alloc-%d", i), "a", i, 0, 16)
	}
	large := servicetest.Ask("large", "1", 3)
	large.Priority = 90
	if d := b.Submit(t, large); d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
		t.Fatalf("got %+v", d)
	}
	b.Register(large)
	b.Block(large, 3)
	later := single(2)
	if d := b.Submit(t, later); d.Hold == nil || d.Hold.Sentence != "job large with priority 90 waits for what this would take of the quota" {
		t.Fatalf("a later single takes the quota: %+v", d.Hold)
	}
	b.Register(later)
	b.Block(later, 1)
	b.End("alloc-0")
	b.End("alloc-1")
	b.LetTimePass()
	due := b.Next(nil, false)
	if due == nil || due.Job.ID != "large" {
		t.Fatalf("due is %+v", due)
	}
	d, err := b.Revise(t.Context(), []admit.Ask{servicetest.Reread(large, b.Record(servicetest.KeyOf(large)).Groups["g"].Decision)}, due.Revision)
	if err != nil || d == nil || d[0].Hold != nil {
		t.Errorf("got %+v, %v", d, err)
	}
}

// What Nomad refuses, to whoever may not submit, is neither shown nor learned from.
func TestRefusedCallersLeaveNoTrace(t *testing.T) {
	b := servicetest.New(t, "", servicetest.Machine("a", 1))
	asks := []admit.Ask{servicetest.Ask("refused", "8G", 1)}
	d, err := b.Decide(t.Context(), asks, false)
	if err != nil {
		t.Fatal(err)
	}
	b.Settle(t.Context(), asks, d, false)
	if _, err := b.Decide(t.Context(), asks, true); err != nil {
		t.Fatal(err)
	}
	if n := len(b.Cluster(t).Decisions); n != 0 || len(b.Store.Items) != 0 {
		t.Errorf("%d decisions are shown, %d stored", n, len(b.Store.Items))
	}
	b.Submit(t, servicetest.Ask("taken", "8G", 1))
	if n := len(b.Cluster(t).Decisions); n != 1 {
		t.Errorf("%d decisions are shown of one", n)
	}
}

// TestTheFirst32ThatWaitKeepANodeEach, where the least has to go for them: no more nodes are
// kept than that, however many wait.
func TestTheFirst32ThatWaitKeepANodeEach(t *testing.T) {
	for nodes, held := range map[int]bool{32: true, 33: false} {
		var machines []*nomad.Node
		for i := range nodes {
			machines = append(machines, servicetest.Machine(fmt.Sprintf("m%02d", i), 2))
		}
		b := servicetest.New(t, servicetest.Quick, machines...)
		for i := range nodes {
			b.Tenant(t, fmt.Sprintf("tenant-%02d", i), 10, fmt.Sprintf("m%02d", i), 0, 0, 16)
		}
		for i := range 40 {
			b.Waits(t, fmt.Sprintf("waits-%02d", i), "2", 80)
		}
		if d := b.Submit(t, servicetest.Ask("later", "1", 1)); (d.Hold != nil) != held || held && d.Hold.Kind != view.WaitsForPriority {
			t.Errorf("%d nodes: held %+v", nodes, d.Hold)
		}
	}
}
