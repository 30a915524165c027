// SPDX-License-Identifier: MPL-2.0

package cluster

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
	u := s.Usages[id]
	if u == nil {
		return Usage{}, fmt.Errorf("release usage %q: not there", id)
	}
	n := s.Nodes[u.NodeID]
	at, _ := slices.BinarySearchFunc(n.Holders, id, byUsageID)
	n.Holders = slices.Delete(n.Holders, at, at+1)
	s.move(n, u, -1) // then: the state of its pools counts who holds parts of the node
	s.setEvictables(n)
	delete(s.Usages, id)
	s.countJob(u, -1)
	if s.Priorities[u.Priority]--; s.Priorities[u.Priority] == 0 {
		delete(s.Priorities, u.Priority)
	}
	if u.Reclaim {
		s.reclaimable--
	}
	s.Ledger.Free(&u.Claim)
	return *u, nil
}

func (s *Snapshot) check(u *Usage) (*NodeState, error) {
	n := s.Nodes[u.NodeID]
	if n == nil {
		return nil, fmt.Errorf("apply usage %q: no node %q", u.ID, u.NodeID)
	}
	if s.Usages[u.ID] != nil {
		return nil, fmt.Errorf("apply usage %q: already there", u.ID)
	}
	if u.CPUMHz < 0 || u.MemoryMiB < 0 {
		return nil, fmt.Errorf("apply usage %q: negative CPU or memory", u.ID)
	}
	last := -1
	for _, t := range u.Takes {
		if t.GPU <= last || t.GPU >= len(n.Spec.GPUs) {
			return nil, fmt.Errorf("apply usage %q: GPU %d not on node %q or out of order", u.ID, t.GPU, u.NodeID)
		}
		if t.Milli < 0 || t.Slices < 0 || t.Replicas < 0 || t.Expected < 0 || t.Expected > MaxSlices || t.Slices > MaxSlices || t.Replicas > MaxSlices {
			return nil, fmt.Errorf("apply usage %q: GPU %d: amount out of range", u.ID, t.GPU)
		}
		last = t.GPU
	}
	return n, nil
}

// fits checks the capacity of the node for a usage.
func (n *NodeState) fits(u *Usage) error {
	if u.CPUMHz > n.CPU || u.MemoryMiB > n.Memory {
		return fmt.Errorf("%w: node %q has %d MHz and %d MiB free", ErrCapacity, n.Spec.ID, n.CPU, n.Memory)
	}
	for _, t := range u.Takes {
		c := &n.Where[t.GPU].Pool.GPUs[n.Where[t.GPU].Index]
		whole := n.Spec.GPUs[t.GPU].Mode == gpu.ModeWhole && c.Tasks > 0
		if whole || t.Milli > int64(c.Milli) || t.Slices > int64(c.Slices) || t.Replicas > int64(c.Replicas) {
			return fmt.Errorf("%w: GPU %q of node %q", ErrCapacity, n.Spec.GPUs[t.GPU].ID, n.Spec.ID)
		}
	}
	return nil
}

func (s *Snapshot) book(n *NodeState, u *Usage) {
	own := *u
	own.Takes = slices.Clone(u.Takes)
	own.Claim = u.Claim.Again(u.ID, u.Queue, u.Priority, u.Start, s.ChargeOn(n, u.Takes))
	at, _ := slices.BinarySearchFunc(n.Holders, u.ID, byUsageID)
	n.Holders = slices.Insert(n.Holders, at, &own)
	s.Usages[u.ID] = &own
	s.countJob(&own, 1)
	s.Priorities[u.Priority]++
	if u.Reclaim {
		s.reclaimable++
	}
	s.Ledger.Book(&own.Claim)
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

// OfJob lists the usages of a job that has a name.
func (s *Snapshot) OfJob(namespace, job string) []*Usage { return s.jobs[jobName{namespace, job}] }

// AnyReclaimable reports whether any work may be evicted since it does not use its GPUs.
func (s *Snapshot) AnyReclaimable() bool { return s.reclaimable > 0 }

// AnyBelow reports whether any work has a lower priority.
func (s *Snapshot) AnyBelow(priority int) bool {
	for rank := range s.Priorities {
		if rank < priority {
			return true
		}
	}
	return false
}

// Restore books a usage that was just released: it fitted before.
func (s *Snapshot) Restore(u Usage) { s.book(s.Nodes[u.NodeID], &u) }

// MustRelease frees a usage that is known to be there.
func (s *Snapshot) MustRelease(id string) {
	if s.Usages[id] != nil {
		_, _ = s.Release(id) // it is there
	}
}

func byUsageID(u *Usage, id string) int { return strings.Compare(u.ID, id) }

// move books (sign 1) or frees (sign -1) the amounts of a usage.
func (s *Snapshot) move(n *NodeState, u *Usage, sign int64) {
	n.CPU -= sign * u.CPUMHz
	if n.counts() {
		s.inUse.cpu += sign * u.CPUMHz
	}
	n.Memory -= sign * u.MemoryMiB
	for _, t := range u.Takes {
		c := &n.Where[t.GPU].Pool.GPUs[n.Where[t.GPU].Index]
		c.Milli -= int32(sign * t.Milli)
		c.Slices -= int32(sign * t.Slices)
		c.Replicas -= int32(sign * t.Replicas)
		c.Tasks += int32(sign)
		if t.Expected > 0 {
			c.Burst += int32(sign * t.Burst(&s.Kinds[n.Where[t.GPU].Pool.Kind]))
		}
	}
	for _, b := range n.Pools {
		s.touch(b)
	}
}

// Held is what the work of a queue holds, without that of queues below it.
func (s *Snapshot) Held(queue string) quota.Charge { return s.Ledger.Held(queue) }

// Claims is the work of a queue in the order in which it was booked.
func (s *Snapshot) Claims(queue string) []*quota.Claim { return s.Ledger.Claims(queue) }

// Charge is what a quota pays for takes on a node; nothing where the node is
// not there.
func (s *Snapshot) Charge(nodeID string, takes []Take) quota.Charge {
	n := s.Nodes[nodeID]
	if n == nil {
		return quota.Charge{}
	}
	return s.ChargeOn(n, takes)
}

// ChargeOn is what a quota pays for takes on a node.
func (s *Snapshot) ChargeOn(n *NodeState, takes []Take) quota.Charge {
	var sum quota.Charge
	for _, t := range takes {
		sum = sum.Plus(ChargeOf(&s.Kinds[n.Where[t.GPU].Pool.Kind], t))
	}
	return sum
}

// ChargeOf rounds down, as compute in proportion to slices does: all slices of
// a GPU, handed out one by one, cost no more than the GPU.
func ChargeOf(k *Kind, t Take) quota.Charge {
	switch {
	case k.Slices > 0:
		return quota.Charge{Milli: max(t.Milli, t.Slices*GPUMilli/k.Slices), MemoryMiB: t.Slices * k.SliceMiB}
	case k.Replicas > 0:
		return quota.Charge{Milli: t.Replicas * GPUMilli / k.Replicas, MemoryMiB: t.Replicas * k.MemoryMiB / k.Replicas}
	}
	return quota.Charge{Milli: t.Milli, MemoryMiB: k.MemoryMiB}
}
