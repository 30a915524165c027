package decide

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// Charge is what a quota pays.
type Charge struct {
	Milli     int64 // per GPU the larger of the parts of compute, memory and turns
	MemoryMiB int64
}

func (c Charge) plus(d Charge) Charge { return Charge{c.Milli + d.Milli, c.MemoryMiB + d.MemoryMiB} }

func (c Charge) times(n int64) Charge { return Charge{c.Milli * n, c.MemoryMiB * n} }

// chargeOf is what takes on a node cost.
func chargeOf(n *nomad.Node, takes []place.Take) Charge {
	var sum Charge
	for _, t := range takes {
		g := &n.Plan.GPUs[t.GPU]
		switch g.Mode {
		case gpu.ModeSlice:
			sum.Milli += max(t.Milli, proportion(t.Slices, g.Slices))
			sum.MemoryMiB += t.Slices * g.SliceMiB
		case gpu.ModeShared:
			sum.Milli += proportion(t.Replicas, g.Replicas)
			sum.MemoryMiB += g.MemoryMiB * t.Replicas / max(1, g.Replicas)
		default:
			sum.Milli += gpu.MilliPerGPU
			sum.MemoryMiB += g.MemoryMiB
		}
	}
	return sum
}

// queueOf is the queue that pays for a group of a known job.
func (b *Book) queueOf(key nomad.JobKey, group string) *config.Queue {
	named := ""
	if j := b.jobs[key]; j != nil {
		if g := j.Group(group); g != nil {
			named = g.Queue
		}
		if named == "" {
			named = j.Queue
		}
	}
	q, err := b.config.QueueFor(key.Namespace, named)
	if err != nil {
		// Submitted around the service with a queue that it may not use: its
		// namespace pays.
		q, _ = b.config.QueueFor(key.Namespace, "")
	}
	return q
}

// charge enters a usage in its queue and that queue's ancestors.
func (b *Book) charge(u place.Usage, sign int64) {
	n := b.nodes[u.NodeID]
	if u.Queue == "" || n == nil || len(u.Takes) == 0 {
		return
	}
	cost := chargeOf(n, u.Takes).times(sign)
	for _, q := range b.lineage(u.Queue) {
		b.taken[q.Name] = b.taken[q.Name].plus(cost)
	}
}

// recharge adds everything up anew, after queues changed or a node left.
func (b *Book) recharge() {
	clear(b.taken)
	for node, usages := range b.usages {
		for id, u := range usages {
			if a := b.allocs[id]; a != nil {
				u.Queue = b.usageOf(a).Queue
				b.usages[node][id] = u
			}
			b.charge(u, 1)
		}
	}
}

// lineage is a queue and its ancestors.
func (b *Book) lineage(name string) []*config.Queue {
	var line []*config.Queue
	for q := b.config.Queue(name); q != nil && len(line) <= len(b.config.Queues); q = b.config.Queue(q.Parent) {
		line = append(line, q)
	}
	return line
}

// overQuota says why a queue may not take a charge more; empty when it may.
// Borrowing is allowed as far as the bounds go, as long as there is room;
// whoever's quota it is takes it back by reclaim.
func (b *Book) overQuota(queue string, cost Charge) string {
	for _, q := range b.lineage(queue) {
		after := b.taken[q.Name].plus(cost)
		if most := bound(q); most > 0 && after.Milli > most {
			return fmt.Sprintf("queue %s holds %s of at most %s GPUs, and this needs %s",
				q.Name, inGPUs(b.taken[q.Name].Milli), inGPUs(most), inGPUs(cost.Milli))
		}
		if q.QuotaMemoryMiB > 0 && !q.Borrow && after.MemoryMiB > q.QuotaMemoryMiB {
			return fmt.Sprintf("queue %s holds %d of at most %d MiB of GPU memory, and this needs %d",
				q.Name, b.taken[q.Name].MemoryMiB, q.QuotaMemoryMiB, cost.MemoryMiB)
		}
	}
	return ""
}

// neverInQuota reports whether a charge exceeds a bound even on an idle
// cluster.
func (b *Book) neverInQuota(queue string, cost Charge) (string, bool) {
	for _, q := range b.lineage(queue) {
		if most := bound(q); most > 0 && cost.Milli > most {
			return fmt.Sprintf("queue %s may hold at most %s GPUs, and this needs %s", q.Name, inGPUs(most), inGPUs(cost.Milli)), true
		}
		if q.QuotaMemoryMiB > 0 && !q.Borrow && cost.MemoryMiB > q.QuotaMemoryMiB {
			return fmt.Sprintf("queue %s may hold at most %d MiB of GPU memory, and this needs %d", q.Name, q.QuotaMemoryMiB, cost.MemoryMiB), true
		}
	}
	return "", false
}

// bound is how much a queue may hold; 0: as much as there is.
func bound(q *config.Queue) int64 {
	if !q.Borrow {
		return q.QuotaMilli
	}
	return q.MaxMilli
}

// owed reports whether a queue, with a charge more, is still within its own
// quota: then it may take back what others borrowed.
func (b *Book) owed(queue string, cost Charge) bool {
	q := b.config.Queue(queue)
	if q == nil || q.QuotaMilli == 0 && q.QuotaMemoryMiB == 0 {
		return false
	}
	after := b.taken[queue].plus(cost)
	return (q.QuotaMilli == 0 || after.Milli <= q.QuotaMilli) && (q.QuotaMemoryMiB == 0 || after.MemoryMiB <= q.QuotaMemoryMiB)
}

// borrows is how much a queue holds above its quota.
func (b *Book) borrows(queue string) int64 {
	q := b.config.Queue(queue)
	if q == nil {
		return 0
	}
	return max(0, b.taken[queue].Milli-q.QuotaMilli)
}

func inGPUs(milli int64) string {
	if milli%1000 == 0 {
		return fmt.Sprintf("%d", milli/1000)
	}
	return fmt.Sprintf("%g", float64(milli)/1000)
}
