// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What was dispatched counts from then on, before Nomad shows any of it, and once when it does:
// the next dispatch finds its quota taken.
func TestWhatWasDispatchedCountsAtOnce(t *testing.T) {
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 4))
	parent := servicetest.Ask("parent", "0.5", 1)
	held := func() bool {
		t.Helper()
		d, err := b.Decide(t.Context(), []admit.Ask{parent}, true)
		if err != nil {
			t.Fatal(err)
		}
		return d[0].Hold != nil && d[0].Hold.Kind == view.WaitsForQuota
	}
	child := func(n int) string { return fmt.Sprintf("parent/dispatch-%d", n) }
	for n := range 2 {
		if held() {
			t.Fatalf("child %d is held: two halves of a GPU are free", n)
		}
		b.Dispatched(parent.Namespace, child(n), []admit.Ask{parent})
	}
	if !held() {
		t.Error("a third child is let through")
	}
	b.Dispatched(parent.Namespace, child(0), nil) // of a job without GPUs
	assumed := func(n int) (count int) {
		b.State.View(func(r *state.Reader) {
			count = r.Capacity.Assumed(nomad.JobKey{Namespace: parent.Namespace, ID: child(n)}, parent.Group)
		})
		return count
	}
	if assumed(0) != 1 || assumed(1) != 1 {
		t.Errorf("%d and %d allocs are assumed", assumed(0), assumed(1))
	}
	shown := parent
	shown.JobID = child(0)
	b.Register(shown)
	b.Run(shown, "alloc-0", "a", 0, 0, 8)
	b.Dispatched(parent.Namespace, child(0), []admit.Ask{parent}) // Nomad's answer came later than its event
	if assumed(0) != 0 || assumed(1) != 1 || !held() {
		t.Errorf("when one is shown, %d and %d allocs are assumed", assumed(0), assumed(1))
	}
	b.End("alloc-0")
	if held() {
		t.Error("when it has ended, another is held")
	}
}

// What was dispatched and finds no room counts once Nomad shows that it waits: until then the next
// dispatch has to wait, and a Nomad that does not show it is waited for no longer than a moment.
func TestWhatWasDispatchedAndFindsNoRoom(t *testing.T) {
	for _, shown := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := servicetest.New(t, "queue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"team\"]\n}\n", servicetest.Machine("a", 2))
			for i := range 2 {
				b.Tenant(t, fmt.Sprint("other-", i), 90, "a", i, 0, 16)
			}
			parent := servicetest.Ask("parent", "1", 1)
			parent.Namespace, parent.JobType, parent.Later = "team", "batch", true
			b.Submit(t, parent)
			parent.Later = false
			child := parent
			child.JobID = "parent/dispatch-1"
			began, done := time.Now(), make(chan struct{})
			go func() {
				defer close(done)
				b.Dispatched(parent.Namespace, child.JobID, []admit.Ask{parent})
			}()
			time.Sleep(time.Second + time.Millisecond)
			select {
			case <-done:
				t.Error("it is not shown, and the next one goes on")
			default:
			}
			if shown {
				b.Register(child)
				registered(b, child, func(j *nomad.Job) { j.Parent, j.Dispatched = "parent", true })
				b.Block(child, 1)
			}
			<-done
			if took := time.Since(began); shown != (took < 2*time.Second) || took > 6*time.Second {
				t.Errorf("shown %v: it took %s", shown, took)
			}
			d, err := b.Decide(t.Context(), []admit.Ask{parent}, true)
			if err != nil || shown != (d[0].Hold != nil && d[0].Hold.Kind == view.WaitsForQuota) {
				t.Errorf("shown %v: the next one: %+v, %v", shown, d, err)
			}
		})
	}
}
