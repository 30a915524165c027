// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func TestHeldByQuotaThenReleased(t *testing.T) {
	b := servicetest.New(t, "queue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"default\"]\n}", servicetest.Machine("a", 2))
	first := servicetest.Ask("first", "1", 1)
	b.Submit(t, first)
	b.Register(first)
	b.Run(first, "alloc-1", "a", 0, 0, 16)
	second := servicetest.Ask("second", "0.5", 1)
	d := b.Submit(t, second)
	if d.Hold == nil || d.Hold.Kind != view.WaitsForQuota || !strings.Contains(d.Hold.Sentence, "queue q holds 1 of at most 1") {
		t.Fatalf("got %+v", d.Hold)
	}
	b.Register(second)
	b.Block(second, 1)
	if due := b.Next(nil, true); due != nil {
		t.Errorf("nothing can be done, and yet %+v", due)
	}
	b.End("alloc-1")
	due := b.Next(nil, true)
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
	b := servicetest.New(t, text, servicetest.Machine("a", 2))
	other, low := servicetest.Ask("other", "16G", 1), servicetest.Ask("low", "16G", 1)
	other.Priority, low.Priority, low.Namespace = 10, 20, "q"
	for i, v := range []admit.Ask{other, low} {
		b.Register(v)
		b.Run(v, "alloc-"+v.JobID, "a", i, 0, 16)
	}
	high := servicetest.Ask("high", "8G", 1)
	high.Priority, high.Namespace = 80, "q"
	if d := b.Submit(t, high); d.Hold == nil || d.Hold.Kind != view.WaitsForQuota {
		t.Fatalf("got %+v", d)
	}
	b.Register(high)
	b.Block(high, 1)
	b.Clock.At = b.Clock.At.Add(2*time.Second + time.Second)
	due := b.Next(nil, true)
	if due == nil || due.Evict == nil || len(due.Evict.Victims) != 1 || due.Evict.Victims[0].Job.ID != "low" {
		t.Fatalf("due is %+v", due)
	}
	if _, err := b.Revise(t.Context(), []admit.Ask{high}, due.Revision); err != nil || b.Record(servicetest.KeyOf(high)).Groups["g"].Decision.Hold == nil {
		t.Errorf("it is let go before the quota is there: %v", err)
	}
	b.Stop("alloc-low")
	b.LetTimePass()
	if due := b.Next(nil, true); due != nil {
		t.Errorf("while what goes for it stops, due is %+v", due)
	}
	b.End("alloc-low")
	b.LetTimePass()
	if due = b.Next(nil, true); due == nil || due.Job.ID != "high" || !due.Revision.Retry {
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
	b := servicetest.New(t, text, servicetest.Machine("a", 1))
	borrower := servicetest.Ask("borrower", "16G", 1)
	borrower.Namespace = "big"
	if d := b.Submit(t, borrower); d.Hold != nil || len(d.Preferred) != 1 {
		t.Fatalf("got %+v", d)
	}
	b.Register(borrower)
	b.Run(borrower, "alloc", "a", 0, 0, 16)
	more := servicetest.Ask("more", "1G", 1)
	more.Namespace = "big"
	if d := b.Submit(t, more); d.Hold == nil || d.Hold.Sentence != "queue big holds 16 GiB of at most 16 GiB of GPU memory, and this needs 1 GiB" {
		t.Errorf("got %+v", d.Hold)
	}
	c := b.Cluster(t)
	if c.Queues[0].BorrowedMemoryMiB != 8<<10 || c.Queues[0].MaxMemoryMiB != 16<<10 || c.Queues[0].UsedMemoryMiB != 16<<10 {
		t.Errorf("people see %+v", c.Queues)
	}
	owner := servicetest.Ask("owner", "8G", 1)
	owner.Namespace = "owner"
	b.Submit(t, owner)
	b.Register(owner)
	b.Block(owner, 1)
	b.Clock.At = b.Clock.At.Add(2*time.Second + time.Second)
	due := b.Next(nil, true)
	if due == nil || due.Evict == nil || !due.Evict.Reclaim || !strings.Contains(due.Evict.Text, "takes back what was borrowed from queue owner") {
		t.Fatalf("due is %+v", due)
	}
}
