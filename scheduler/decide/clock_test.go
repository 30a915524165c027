// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// byClock is a periodic job of GPUs.
func byClock(id, request string, count int) admit.Ask {
	a := servicetest.Ask(id, request, count)
	a.JobType, a.Later, a.ByClock = "batch", true, true
	return a
}

// showPeriodic shows a periodic job as it was recorded.
func showPeriodic(b *servicetest.Service, a admit.Ask) {
	b.Register(a)
	j := b.Job(servicetest.KeyOf(a))
	b.Index++
	j.Index, j.Periodic, j.Stopped = b.Index, true, true
	b.State.Apply([]nomad.Change{{Job: &j}}, b.Index)
}

// What Nomad starts later is decided about when it is submitted: a periodic job waits where its queue
// cannot pay for a child now, with all of its allocs, and so do its children; it is refused where that
// can never be, and so is one on every node, whose children Nomad would not have wait. What is dispatched
// is decided about then.
func TestAPeriodicJobThatCannotBePaidForWaits(t *testing.T) {
	parameterized := func(a admit.Ask) admit.Ask { a.ByClock = false; return a }
	everywhere := func(a admit.Ask) admit.Ask { a.JobType = "sysbatch"; return a }
	two := strings.Replace(servicetest.OneGPU, "gpus = 1", "gpus = 2", 1)
	for name, row := range map[string]struct {
		config string
		taken  int // slices
		ask    admit.Ask
		held   bool
		status int
	}{
		"there is quota":                    {config: two, taken: 16, ask: byClock("p", "1", 1)},
		"there is too little":               {config: two, taken: 16, ask: byClock("p", "1", 2), held: true},
		"there is none":                     {config: servicetest.OneGPU, taken: 16, ask: byClock("p", "1G", 1), held: true},
		"it waits for what comes first":     {config: servicetest.OneGPU, taken: 12, ask: byClock("p", "4G", 1)},
		"there never is":                    {config: two, ask: byClock("p", "1", 3), status: 403},
		"a parameterized one":               {config: servicetest.OneGPU, taken: 16, ask: parameterized(byClock("p", "1G", 1))},
		"a parameterized one that is never": {config: two, ask: parameterized(byClock("p", "1", 3)), status: 403},
		"on each node":                      {config: two, taken: 16, ask: everywhere(byClock("p", "1", 1)), status: 403},
		"on each node, and there is quota":  {config: two, taken: 8, ask: everywhere(byClock("p", "4G", 1))},
		"there is no queue":                 {taken: 16, ask: byClock("p", "1", 1)},
		"the queue may borrow":              {config: strings.Replace(servicetest.OneGPU, "borrow = false", "borrow = true", 1), taken: 16, ask: byClock("p", "1", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, row.config, servicetest.Machine("a", 2), servicetest.Machine("b", 2))
			if row.taken > 0 {
				b.Tenant(t, "other", 50, "a", 0, 0, row.taken)
			}
			d, err := b.Decide(t.Context(), []admit.Ask{row.ask}, true)
			if refusal := (*admit.Refusal)(nil); row.status > 0 {
				if !errors.As(err, &refusal) || refusal.Status != row.status {
					t.Errorf("got %+v, %v", d, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if held := d[0].Hold != nil && d[0].Hold.Kind == view.WaitsForQuota && d[0].Outcome == view.Held; held != row.held || !held && d[0].Outcome != view.Registered {
				t.Errorf("got %+v", d[0])
			}
			if len(d[0].Tasks) != 1 || len(d[0].Tasks[0].Devices) != 1 || len(d[0].Preferred) > 0 || len(b.AllAssumed()) > 1 {
				t.Errorf("its children get %+v, and %d are assumed", d[0], len(b.AllAssumed()))
			}
			if said := strings.Join(d[0].Explanation, "\n"); row.held && (!strings.Contains(said, "each child of a periodic job waits for it before it starts, until the job is registered anew") || len(d[0].Explanation) != 1) {
				t.Errorf("the plan says %q", said)
			}
		})
	}
}

// What was registered free stays so, for as much as it was decided for: like a job that runs, it is
// not held for being submitted again. What is held is free when it is submitted while there is quota.
func TestAPeriodicJobIsDecidedAboutWhenItIsRegistered(t *testing.T) {
	const another = "queue \"full\" {\n gpus = 0.5\n borrow = false\n allow_namespaces = [\"default\"]\n}\n"
	b := servicetest.New(t, servicetest.OneGPU+another, servicetest.Machine("a", 2))
	free := byClock("free", "8G", 1)
	if d := b.Submit(t, free); d.Hold != nil {
		t.Fatalf("held: %+v", d.Hold)
	}
	b.Tenant(t, "other", 50, "a", 0, 0, 16)
	if d := b.Submit(t, free); d.Hold == nil {
		t.Error("Nomad does not have it yet, and it is taken for registered")
	}
	b.End("alloc-other")
	if d := b.Submit(t, free); d.Hold != nil {
		t.Fatalf("held: %+v", d.Hold)
	}
	showPeriodic(b, free)
	b.LetTimePass()
	b.Tenant(t, "third", 50, "a", 0, 0, 16)
	fill := servicetest.Ask("fill", "8G", 1)
	fill.Queue = "full"
	b.Submit(t, fill)
	b.Register(fill)
	b.Run(fill, "alloc-fill", "a", 1, 0, 8)
	b.LetTimePass()
	more, other, elsewhere := free, byClock("free", "9G", 1), free
	more.Count, elsewhere.Queue = 2, "full"
	for name, row := range map[string]struct {
		ask  admit.Ask
		held bool
	}{"as it was": {free, false}, "with more allocs": {more, true}, "with more memory": {other, true}, "in another queue": {elsewhere, true}} {
		d, err := b.Decide(t.Context(), []admit.Ask{row.ask}, true)
		if err != nil || (d[0].Hold != nil) != row.held {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	late := byClock("late", "8G", 1)
	if d := b.Submit(t, late); d.Hold == nil {
		t.Fatal("it is not held")
	}
	showPeriodic(b, late)
	b.LetTimePass()
	if d := b.Submit(t, late); d.Hold == nil || d.Outcome != view.Held {
		t.Errorf("submitted again: %+v", d)
	}
	b.End("alloc-third")
	if d := b.Submit(t, late); d.Hold != nil || d.Outcome != view.Registered {
		t.Errorf("there is quota: %+v", d)
	}
}
