// SPDX-License-Identifier: MPL-2.0

package cluster

// Evictable is what evictions on a pool can be expected to give, known without
// looking at the pool. Victims are counted for its whole node.
type Evictable struct {
	Priority int   // the lowest that holds something
	Youngest int64 // Unix second of the latest start at that priority
	Milli    int32 // GPU held at that priority
	Largest  int32 // most GPU that one usage holds, of any priority
	Kind     int32
	Partly   partly
	Slices   int32 // of one GPU; 0 where it has none
	Idle     uint8 // GPUs of share 1000
	Held     bool  // by any task
}

// setEvictables brings what evictions could give on a node's pools up to date with who holds
// parts of it.
func (s *Snapshot) setEvictables(n *NodeState) {
	var p Evictable
	for i, u := range n.Holders {
		if i == 0 || u.Priority < p.Priority {
			p.Priority, p.Milli, p.Youngest = u.Priority, 0, u.started()
		}
		held := int32(min(u.Claim.Charge.Milli+int64(len(u.Takes)), MaxGPUs*GPUMilli)) // charges are rounded down
		if u.Priority == p.Priority {
			p.Milli = min(p.Milli+held, MaxGPUs*GPUMilli)
			p.Youngest = max(p.Youngest, u.started())
		}
		p.Largest = max(p.Largest, held)
	}
	p.Held = len(n.Holders) > 0
	for _, b := range n.Pools {
		p.Kind, p.Idle, p.Partly, p.Slices = b.Kind, uint8(b.Idle), b.partly, 0
		if b.Kind >= 0 {
			p.Slices = int32(s.Kinds[b.Kind].Slices)
		}
		s.Evictables[b.ID] = p
	}
}
