package decide

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// around shows a job with a device block that was submitted to Nomad itself.
func (b *bench) around(id string, priority, slices int) admit.Ask {
	a := ask(id, "1G", 1)
	a.Priority = priority
	a.Tasks = []admit.TaskAsk{{Task: "t", Driver: "raw_exec", Devices: []admit.DeviceAsk{{Name: "nvidia/slice", Count: int64(slices)}}}}
	b.show(a, false)
	return a
}

const oneGPU = "queue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"default\"]\n}\n"

func TestJobsThatCameAroundAreCounted(t *testing.T) {
	b := newBench(t, oneGPU, machine("a", 2))
	low, high := b.around("low", 20, 16), b.around("high", 50, 8)
	b.run(low, "alloc-low", "a", 0, 0, 16)
	b.run(high, "alloc-high", "a", 1, 0, 8)
	c, err := b.book.Picture()
	if err != nil || c.Queues[0].UsedMilli != 1500 || c.Queues[0].DirectMilli != 1500 {
		t.Errorf("queue %+v, %v", c.Queues, err)
	}
	if d := b.decide(t, ask("next", "1G", 1)); d.Hold == nil || d.Hold.Sentence != "queue q holds 1.5 of at most 1 GPUs, and this needs 0.062" {
		t.Errorf("got %+v", d.Hold)
	}
	if due := b.book.NextDue(nil, true); due != nil {
		t.Errorf("nobody asked for it, and yet %+v", due)
	}
}

// What came around the service is brought back under the quota, the lowest
// priority first and no more than must be, and runs again when the quota allows.
func TestJobsThatCameAroundAreBroughtBack(t *testing.T) {
	b := newBench(t, "preemption {\n hold_direct_jobs = true\n}\n"+oneGPU, machine("a", 2))
	low, high := b.around("low", 20, 16), b.around("high", 50, 8)
	b.run(low, "alloc-low", "a", 0, 0, 16)
	b.run(high, "alloc-high", "a", 1, 0, 8)
	due := b.book.NextDue(nil, true)
	if due == nil || due.Job.ID != "low" || due.Revision.Hold == nil || due.Revision.Hold.Sentence != "queue q holds 1.5 of at most 1 GPUs" ||
		len(due.Evict.Victims) != 1 || due.Evict.Victims[0].AllocID != "alloc-low" || !strings.Contains(due.Evict.Text, "came around the service, must wait") {
		t.Fatalf("due is %+v", due)
	}
	d, err := b.Revise(t.Context(), []admit.Ask{low}, due.Revision)
	if err != nil || d == nil || d[0].Hold == nil {
		t.Fatalf("got %+v, %v", d, err)
	}
	b.register(low) // with the service's mark
	b.block(low, 1)
	if due := b.book.NextDue(nil, true); due != nil {
		t.Errorf("it has not stopped yet, and the next one goes, or it is let go: %+v", due)
	}
	b.end("alloc-low")
	b.block(low, 1)
	if due := b.book.NextDue(nil, true); due != nil {
		t.Errorf("half a GPU is left, and yet %+v", due)
	}
	if p := b.book.pending(); len(p) != 1 || p[0].Kind != view.WaitsForQuota {
		t.Errorf("pending %+v", p)
	}
	b.end("alloc-high")
	b.clock.at = b.clock.at.Add(time.Second)
	due = b.book.NextDue(nil, true)
	if due == nil || due.Job.ID != "low" || !due.Revision.Retry {
		t.Fatalf("due is %+v", due)
	}
	if d, err = b.Revise(t.Context(), []admit.Ask{low}, due.Revision); err != nil || d == nil || d[0].Hold != nil {
		t.Errorf("got %+v, %v", d, err)
	}
}
