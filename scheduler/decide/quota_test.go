package decide

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func TestHeldByQuotaThenReleased(t *testing.T) {
	b := newBench(t, "queue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"default\"]\n}", machine("a", 2))
	first := ask("first", "1", 1)
	b.decide(t, first)
	b.register(first)
	b.run(first, "alloc-1", "a", 0, 0, 16)
	second := ask("second", "0.5", 1)
	d := b.decide(t, second)
	if d.Hold == nil || d.Hold.Kind != view.WaitsForQuota || !strings.Contains(d.Hold.Sentence, "queue q holds 1 of at most 1") {
		t.Fatalf("got %+v", d.Hold)
	}
	b.register(second)
	b.block(second, 1)
	if due := b.book.NextDue(nil, true); due != nil {
		t.Errorf("nothing can be done, and yet %+v", due)
	}
	b.end("alloc-1")
	due := b.book.NextDue(nil, true)
	if due == nil || due.Job.ID != "second" || !due.Revision.Retry {
		t.Fatalf("due is %+v", due)
	}
	again, err := b.Revise(t.Context(), []admit.Ask{second}, due.Revision)
	if err != nil || again == nil || again[0].Hold != nil || len(again[0].Preferred) != 1 {
		t.Errorf("got %+v, %v", again, err)
	}
}

// At its limit a queue makes room in itself, and nowhere else.
func TestAQueueAtItsLimitGivesWayToItsOwnPriority(t *testing.T) {
	const text = "preemption {\n min_run_time = \"0s\"\n}\nqueue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"q\"]\n}"
	b := newBench(t, text, machine("a", 2))
	other, low := ask("other", "16G", 1), ask("low", "16G", 1)
	other.Priority, low.Priority, low.Namespace = 10, 20, "q"
	for i, v := range []admit.Ask{other, low} {
		b.register(v)
		b.run(v, "alloc-"+v.JobID, "a", i, 0, 16)
	}
	high := ask("high", "8G", 1)
	high.Priority, high.Namespace = 80, "q"
	if d := b.decide(t, high); d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
		t.Fatalf("got %+v", d)
	}
	b.register(high)
	b.block(high, 1)
	b.clock.at = b.clock.at.Add(settled + time.Second)
	due := b.book.NextDue(nil, true)
	if due == nil || due.Evict == nil || len(due.Evict.Victims) != 1 || due.Evict.Victims[0].Job.ID != "low" {
		t.Fatalf("due is %+v", due)
	}
	d, err := b.Revise(t.Context(), []admit.Ask{high}, due.Revision)
	if err != nil || d == nil || d[0].Hold != nil {
		t.Errorf("got %+v, %v", d, err)
	}
}

// A quota of memory may be exceeded while others leave theirs, is taken back by
// its owner, and has a bound of its own.
func TestMemoryQuotaIsBorrowedAndReclaimed(t *testing.T) {
	const text = "preemption {\n min_run_time = \"0s\"\n}\n" +
		"queue \"big\" {\n gpu_memory_gb = 8\n max_gpu_memory_gb = 16\n namespaces = [\"big\"]\n}\n" +
		"queue \"owner\" {\n gpu_memory_gb = 8\n namespaces = [\"owner\"]\n}"
	b := newBench(t, text, machine("a", 1))
	borrower := ask("borrower", "16G", 1)
	borrower.Namespace = "big"
	if d := b.decide(t, borrower); d.Hold != nil || len(d.Preferred) != 1 {
		t.Fatalf("got %+v", d)
	}
	b.register(borrower)
	b.run(borrower, "alloc", "a", 0, 0, 16)
	more := ask("more", "1G", 1)
	more.Namespace = "big"
	if d := b.decide(t, more); d.Hold == nil || d.Hold.Sentence != "queue big holds 16384 of at most 16384 MiB of GPU memory, and this needs 1024" {
		t.Errorf("got %+v", d.Hold)
	}
	c, err := b.book.Picture()
	if err != nil || c.Queues[0].BorrowedMemoryMiB != 8<<10 || c.Queues[0].MaxMemoryMiB != 16<<10 || c.Queues[0].UsedMemoryMiB != 16<<10 {
		t.Errorf("the picture has %+v, %v", c.Queues, err)
	}
	owner := ask("owner", "8G", 1)
	owner.Namespace = "owner"
	b.decide(t, owner)
	b.register(owner)
	b.block(owner, 1)
	b.clock.at = b.clock.at.Add(settled + time.Second)
	due := b.book.NextDue(nil, true)
	if due == nil || due.Evict == nil || !due.Evict.Reclaim || !strings.Contains(due.Evict.Text, "takes back what was borrowed from queue owner") {
		t.Fatalf("due is %+v", due)
	}
}
