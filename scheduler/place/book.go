package place

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Apply books a usage. It fails with ErrCapacity, and changes nothing, when
// the node cannot hold it.
func (s *Snapshot) Apply(u Usage) error {
	n, err := s.check(&u)
	if err != nil {
		return err
	}
	if err := n.fits(&u); err != nil {
		return fmt.Errorf("apply usage %q: %w", u.ID, err)
	}
	s.book(n, &u)
	return nil
}

// Observe books a usage that is a fact, such as an alloc that Nomad runs, even
// where it exceeds what the node has.
func (s *Snapshot) Observe(u Usage) error {
	n, err := s.check(&u)
	if err != nil {
		return err
	}
	s.book(n, &u)
	return nil
}

// Release frees a usage and returns it. Releasing and applying again restores
// the snapshot exactly.
func (s *Snapshot) Release(id string) (Usage, error) {
	u := s.usages[id]
	if u == nil {
		return Usage{}, fmt.Errorf("release usage %q: not there", id)
	}
	n := s.nodes[u.NodeID]
	s.move(n, u, -1)
	at, _ := slices.BinarySearchFunc(n.holders, id, byUsageID)
	n.holders = slices.Delete(n.holders, at, at+1)
	s.setEvictables(n)
	delete(s.usages, id)
	s.countJob(u, -1)
	if s.ranks[u.Priority]--; s.ranks[u.Priority] == 0 {
		delete(s.ranks, u.Priority)
	}
	if u.Reclaim {
		s.reclaimable--
	}
	s.ledger.Free(&u.claim)
	return *u, nil
}

func (s *Snapshot) check(u *Usage) (*nodeState, error) {
	n := s.nodes[u.NodeID]
	if n == nil {
		return nil, fmt.Errorf("apply usage %q: no node %q", u.ID, u.NodeID)
	}
	if s.usages[u.ID] != nil {
		return nil, fmt.Errorf("apply usage %q: already there", u.ID)
	}
	if u.CPUMHz < 0 || u.MemoryMiB < 0 {
		return nil, fmt.Errorf("apply usage %q: negative CPU or memory", u.ID)
	}
	last := -1
	for _, t := range u.Takes {
		if t.GPU <= last || t.GPU >= len(n.spec.GPUs) {
			return nil, fmt.Errorf("apply usage %q: GPU %d not on node %q or out of order", u.ID, t.GPU, u.NodeID)
		}
		if t.Milli < 0 || t.Slices < 0 || t.Replicas < 0 || t.Slices > maxSlices || t.Replicas > maxSlices {
			return nil, fmt.Errorf("apply usage %q: GPU %d: amount out of range", u.ID, t.GPU)
		}
		last = t.GPU
	}
	return n, nil
}

// fits checks the capacity of the node for a usage.
func (n *nodeState) fits(u *Usage) error {
	if u.CPUMHz > n.cpu || u.MemoryMiB > n.memory {
		return fmt.Errorf("%w: node %q has %d MHz and %d MiB free", ErrCapacity, n.spec.ID, n.cpu, n.memory)
	}
	for _, t := range u.Takes {
		c := &n.where[t.GPU].pool.gpus[n.where[t.GPU].index]
		whole := n.spec.GPUs[t.GPU].Mode == gpu.ModeWhole && c.tasks > 0
		if whole || t.Milli > int64(c.milli) || t.Slices > int64(c.slices) || t.Replicas > int64(c.replicas) {
			return fmt.Errorf("%w: GPU %q of node %q", ErrCapacity, n.spec.GPUs[t.GPU].ID, n.spec.ID)
		}
	}
	return nil
}

func (s *Snapshot) book(n *nodeState, u *Usage) {
	own := *u
	own.Takes = slices.Clone(u.Takes)
	own.claim = u.claim.Again(u.ID, u.Queue, u.Priority, u.Start, s.charge(n, u.Takes))
	at, _ := slices.BinarySearchFunc(n.holders, u.ID, byUsageID)
	n.holders = slices.Insert(n.holders, at, &own)
	s.usages[u.ID] = &own
	s.countJob(&own, 1)
	s.ranks[u.Priority]++
	if u.Reclaim {
		s.reclaimable++
	}
	s.ledger.Book(&own.claim)
	s.move(n, &own, 1)
	s.setEvictables(n)
}

// countJob notes a usage as of its job (sign 1), or no more (-1).
func (s *Snapshot) countJob(u *Usage, sign int) {
	name := jobName{u.Namespace, u.Job}
	switch all := s.jobs[name]; {
	case u.Job == "":
	case sign > 0:
		s.jobs[name] = append(all, u)
	case len(all) == 1:
		delete(s.jobs, name)
	default:
		at, last := slices.Index(all, u), len(all)-1
		all[at], all[last] = all[last], nil
		s.jobs[name] = all[:last]
	}
}

// ofJob lists the usages of a job that has a name.
func (s *Snapshot) ofJob(namespace, job string) []*Usage { return s.jobs[jobName{namespace, job}] }

// AnyReclaimable reports whether any work may be evicted since it does not use its GPUs.
func (s *Snapshot) AnyReclaimable() bool { return s.reclaimable > 0 }

// anyBelow reports whether any work has a lower priority.
func (s *Snapshot) anyBelow(priority int) bool {
	for rank := range s.ranks {
		if rank < priority {
			return true
		}
	}
	return false
}

// restore books a usage that was just released: it fitted before.
func (s *Snapshot) restore(u Usage) { s.book(s.nodes[u.NodeID], &u) }

// mustRelease frees a usage that is known to be there.
func (s *Snapshot) mustRelease(id string) {
	if s.usages[id] != nil {
		_, _ = s.Release(id) // it is there
	}
}

func byUsageID(u *Usage, id string) int { return strings.Compare(u.ID, id) }

// move books (sign 1) or frees (sign -1) the amounts of a usage.
func (s *Snapshot) move(n *nodeState, u *Usage, sign int64) {
	n.cpu -= sign * u.CPUMHz
	n.memory -= sign * u.MemoryMiB
	for _, t := range u.Takes {
		c := &n.where[t.GPU].pool.gpus[n.where[t.GPU].index]
		c.milli -= int32(sign * t.Milli)
		c.slices -= int32(sign * t.Slices)
		c.replicas -= int32(sign * t.Replicas)
		c.tasks += int32(sign)
	}
	for _, b := range n.pools {
		s.touch(b)
	}
}

// Held is what the work of a queue holds, without that of queues below it.
func (s *Snapshot) Held(queue string) quota.Charge { return s.ledger.Held(queue) }

// Claims is the work of a queue in the order in which it was booked.
func (s *Snapshot) Claims(queue string) []*quota.Claim { return s.ledger.Claims(queue) }

// Charge is what a quota pays for takes on a node; nothing where the node is
// not there.
func (s *Snapshot) Charge(nodeID string, takes []Take) quota.Charge {
	n := s.nodes[nodeID]
	if n == nil {
		return quota.Charge{}
	}
	return s.charge(n, takes)
}

func (s *Snapshot) charge(n *nodeState, takes []Take) quota.Charge {
	var sum quota.Charge
	for _, t := range takes {
		sum = sum.Plus(chargeOf(&s.kinds[n.where[t.GPU].pool.kind], t))
	}
	return sum
}

// chargeOf rounds down, as compute in proportion to slices does: all slices of
// a GPU, handed out one by one, cost no more than the GPU.
func chargeOf(k *kind, t Take) quota.Charge {
	switch {
	case k.Slices > 0:
		return quota.Charge{Milli: max(t.Milli, t.Slices*gpuMilli/k.Slices), MemoryMiB: t.Slices * k.SliceMiB}
	case k.Replicas > 0:
		return quota.Charge{Milli: t.Replicas * gpuMilli / k.Replicas, MemoryMiB: t.Replicas * k.MemoryMiB / k.Replicas}
	}
	return quota.Charge{Milli: t.Milli, MemoryMiB: k.MemoryMiB}
}
