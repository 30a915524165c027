// SPDX-License-Identifier: MPL-2.0

package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// around shows a job with a device block that was submitted to Nomad itself.
func around(b *servicetest.Service, id string, priority, slices int) admit.Ask {
	a := servicetest.Ask(id, "1G", 1)
	a.Priority = priority
	a.Tasks = []admit.TaskAsk{{Task: "t", Driver: "raw_exec", Devices: []admit.DeviceAsk{{Name: "nvidia/slice", Count: int64(slices)}}}}
	b.Show(a, false)
	return a
}

func TestJobsThatCameAroundAreCounted(t *testing.T) {
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
	low, high := around(b, "low", 20, 16), around(b, "high", 50, 8)
	b.Run(low, "alloc-low", "a", 0, 0, 16)
	b.Run(high, "alloc-high", "a", 1, 0, 8)
	c := b.Cluster(t)
	if c.Queues[0].UsedMilli != 1500 || c.Queues[0].DirectMilli != 1500 {
		t.Errorf("queue %+v", c.Queues)
	}
	if d := b.Submit(t, servicetest.Ask("next", "1G", 1)); d.Hold == nil || d.Hold.Sentence != "queue q holds 1.5 of at most 1 GPUs, and this needs 0.062" {
		t.Errorf("got %+v", d.Hold)
	}
	if due := b.Next(nil, true); due != nil {
		t.Errorf("it was not asked for, and yet %+v", due)
	}
}

// What came around the service is brought back under the quota, the lowest
// priority first and no more than must be, and runs again when the quota allows.
func TestJobsThatCameAroundAreBroughtBack(t *testing.T) {
	b := servicetest.New(t, "preemption {\n hold_direct_jobs = true\n}\n"+servicetest.OneGPU, servicetest.Machine("a", 2))
	low, high := around(b, "low", 20, 16), around(b, "high", 50, 8)
	b.Run(low, "alloc-low", "a", 0, 0, 16)
	b.Run(high, "alloc-high", "a", 1, 0, 8)
	if due := b.Next(map[string]bool{"default/low": true}, true); due == nil || due.Job.ID != "high" {
		t.Errorf("beside one that is seen to already it is the turn of %+v", due)
	}
	due := b.Next(nil, true)
	if due == nil || due.Job.ID != "low" || due.Revision.Hold == nil || due.Revision.Hold.Sentence != "queue q holds 1.5 of at most 1 GPUs" ||
		len(due.Evict.Victims) != 1 || due.Evict.Victims[0].AllocID != "alloc-low" || !strings.Contains(due.Evict.Text, "came around the service, must wait") {
		t.Fatalf("due is %+v", due)
	}
	d, err := b.Revise(t.Context(), []admit.Ask{low}, due.Revision)
	if err != nil || d == nil || d[0].Hold == nil {
		t.Fatalf("got %+v, %v", d, err)
	}
	b.Register(low) // with the service's mark
	b.Block(low, 1)
	if due := b.Next(nil, true); due != nil {
		t.Errorf("it has not stopped yet, and the next one goes, or it is let go: %+v", due)
	}
	b.End("alloc-low")
	b.Block(low, 1)
	if due := b.Next(nil, true); due != nil {
		t.Errorf("half a GPU is left, and yet %+v", due)
	}
	if p := b.Cluster(t).Pending; len(p) != 1 || p[0].Kind != view.WaitsForQuota || p[0].Milli != 1000*int64(p[0].Missing) {
		t.Errorf("pending %+v", p)
	}
	b.End("alloc-high")
	b.Clock.At = b.Clock.At.Add(time.Second)
	due = b.Next(nil, true)
	if due == nil || due.Job.ID != "low" || !due.Revision.Retry {
		t.Fatalf("due is %+v", due)
	}
	if d, err = b.Revise(t.Context(), []admit.Ask{low}, due.Revision); err != nil || d == nil || d[0].Hold != nil {
		t.Errorf("got %+v, %v", d, err)
	}
}

// A queue that is above its limit by what cannot be brought back says so, and why.
func TestAQueueAboveItsLimitSaysWhy(t *testing.T) {
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 3))
	a := around(b, "direct", 50, 16)
	b.Run(a, "one", "a", 0, 0, 16)
	child := around(b, "parent/dispatch-1", 50, 16)
	b.Run(child, "two", "a", 1, 0, 16)
	j := b.Job(servicetest.KeyOf(child))
	b.Index++
	j.Index, j.Dispatched = b.Index, true
	b.State.Apply([]nomad.Change{{Job: &j}}, b.Index)
	got := b.Cluster(t).Queues[0].Above
	for _, want := range []string{"queue q holds 2 of at most 1 GPUs", "held by dispatched jobs, which Nomad does not let be changed", "hold_direct_jobs = true"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
	b.End("two")
	if got := b.Cluster(t).Queues[0].Above; got != "" {
		t.Errorf("within its limit: %q", got)
	}
}

// TestOfEqualsTheYoungestIsBroughtBack, of what came around the service.
func TestOfEqualsTheYoungestIsBroughtBack(t *testing.T) {
	for _, order := range [][]string{{"older", "younger"}, {"zz", "aa"}} {
		b := servicetest.New(t, "preemption {\n hold_direct_jobs = true\n}\n"+servicetest.OneGPU, servicetest.Machine("a", 2))
		for i, id := range order {
			a := around(b, id, 50, 16)
			b.Run(a, "alloc-"+id, "a", i, 0, 16)
			b.Pass(time.Minute)
		}
		if due := b.Next(nil, true); due == nil || due.Job.ID != order[1] || due.Revision.Hold == nil {
			t.Errorf("of %v due is %+v", order, due)
		}
	}
}
