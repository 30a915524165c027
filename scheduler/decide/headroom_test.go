// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// largeJobsCome has a job for four GPUs come every ten minutes for two hours, each of which
// ends at once.
func largeJobsCome(t *testing.T, b *servicetest.Service) {
	t.Helper()
	for i := range 12 {
		a := servicetest.Ask(fmt.Sprint("large-", i), "4", 1)
		a.JobType = "batch"
		b.Submit(t, a)
		b.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(a)) })
		b.Pass(10 * time.Minute)
	}
}

// A small job leaves the last whole node to the large jobs that come often: it waits for other
// room, and takes the node when it has waited long enough.
func TestASmallJobLeavesTheLastWholeNodeForAWhile(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 4), servicetest.Machine("b", 1))
	largeJobsCome(t, b)
	if d := b.Submit(t, servicetest.Ask("first", "1", 1)); d.Hold != nil || d.Preferred[0] != "id-b" {
		t.Fatalf("with other room: held %+v, on %v", d.Hold, d.Preferred)
	}
	b.Tenant(t, "other", 90, "b", 0, 0, 16)
	small := servicetest.Ask("small", "1", 1)
	d := b.Submit(t, small)
	if d.Hold == nil || d.Hold.Kind != view.WaitsForHeadroom ||
		!strings.HasPrefix(d.Hold.Sentence, "jobs for 4 GPUs of a node come often, and 1 place for one is left; it starts as soon as there is other room, and from ") {
		t.Fatalf("held %+v", d.Hold)
	}
	if d := b.Submit(t, servicetest.Ask("large", "4", 1)); d.Hold != nil {
		t.Errorf("a large job is held: %+v", d.Hold)
	}
	b.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(servicetest.Ask("large", "4", 1))) })
	gang := servicetest.Ask("gang", "1", 1)
	gang.Gang = true
	if d := b.Submit(t, gang); d.Hold != nil {
		t.Errorf("a gang is held: %+v", d.Hold)
	}
	b.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(gang)) })
	high := servicetest.Ask("high", "1", 1)
	high.Priority = 90
	if d := b.Submit(t, high); d.Hold != nil {
		t.Errorf("a job of higher priority than the large ones is held: %+v", d.Hold)
	}
	b.State.Do(func(tx *state.Tx) { tx.Forget(servicetest.KeyOf(high)) })

	b.Register(small)
	b.Block(small, 1)
	for range 4 {
		b.Pass(time.Minute)
		if due := b.Next(nil, true); due != nil {
			t.Fatalf("due before it has waited long enough: %+v", due)
		}
	}
	b.Pass(90 * time.Second)
	if due := b.Next(nil, true); due == nil || due.Job.ID != "small" || !due.Revision.Retry || due.Evict != nil {
		t.Errorf("due when it has waited long enough: %+v", due)
	}
}

// What waits for its quota has no room kept for the like of it: else a tenant could have the
// small jobs of all others wait.
func TestNoHeadroomForWhatItsQueueCannotPayFor(t *testing.T) {
	const queue = "queue \"q\" {\n gpus = 4\n borrow = false\n namespaces = [\"tenant\"]\n}\n"
	b := servicetest.New(t, servicetest.Quick+queue, servicetest.Machine("a", 4), servicetest.Machine("b", 1), servicetest.Machine("c", 4))
	for i := range 12 {
		a := servicetest.Ask(fmt.Sprint("large-", i), "4", 1)
		a.Namespace = "tenant"
		d := b.Submit(t, a)
		if held := d.Hold != nil && d.Hold.Kind == view.WaitsForQuota; held != (i > 0) {
			t.Fatalf("large job %d is held: %+v", i, d.Hold)
		}
		b.Pass(time.Minute)
	}
	b.Tenant(t, "other", 90, "b", 0, 0, 16)
	if d := b.Submit(t, servicetest.Ask("small", "1", 1)); d.Hold != nil {
		t.Errorf("held: %+v", d.Hold)
	}
}

// It starts as soon as there is other room.
func TestASmallJobThatLeftAWholeNodeTakesOtherRoomAtOnce(t *testing.T) {
	b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 4), servicetest.Machine("b", 1))
	largeJobsCome(t, b)
	b.Tenant(t, "other", 90, "b", 0, 0, 16)
	small := servicetest.Ask("small", "1", 1)
	if d := b.Submit(t, small); d.Hold == nil {
		t.Fatal("it is not held")
	}
	b.Register(small)
	b.Block(small, 1)
	b.LetTimePass()
	b.End("alloc-other")
	b.LetTimePass()
	if due := b.Next(nil, true); due == nil || due.Job.ID != "small" || !due.Revision.Retry {
		t.Errorf("due: %+v", due)
	}
}

// Where nothing is free, what waits leaves the next node that comes free as a whole as well; but where
// room can be made for its priority, it is made at once.
func TestASmallJobLeavesTheNextWholeNodeButNotItsPriority(t *testing.T) {
	full := func(priority int) (*servicetest.Service, admit.Ask) {
		b := servicetest.New(t, servicetest.Quick, servicetest.Machine("a", 4))
		largeJobsCome(t, b)
		for i := range 4 {
			b.Tenant(t, fmt.Sprint("tenant-", i), priority, "a", i, 0, 16)
		}
		small := servicetest.Ask("small", "1", 1)
		d := b.Submit(t, small)
		if d.Hold == nil || d.Hold.Kind != view.WaitsForRoom {
			t.Fatalf("held %+v", d.Hold)
		}
		b.Register(small)
		b.Block(small, 1)
		b.Pass(servicetest.Settled)
		return b, small
	}
	b, _ := full(90)
	for i := range 4 {
		b.End(fmt.Sprint("alloc-tenant-", i))
	}
	if due := b.Next(nil, true); due != nil {
		t.Errorf("due: %+v", due)
	}
	b, _ = full(10)
	if due := b.Next(nil, true); due == nil || due.Evict == nil || len(due.Evict.Victims) != 1 {
		t.Errorf("due: %+v", due)
	}
}
