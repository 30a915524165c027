package place

// evictable is what evictions on a pool can be expected to give, known without
// looking at the pool. Victims are counted for its whole node.
type evictable struct {
	priority int   // the lowest that holds something
	youngest int64 // Unix second of the latest start at that priority
	milli    int32 // GPU held at that priority
	largest  int32 // most GPU that one usage holds, of any priority
	kind     int32
	partly   partly
	slices   int32 // of one GPU; 0 where it has none
	idle     uint8 // GPUs of share 1000
	held     bool  // by any task
}

// setEvictables brings what evictions could give on a node's pools up to date with who holds
// parts of it.
func (s *Snapshot) setEvictables(n *nodeState) {
	var p evictable
	for i, u := range n.holders {
		if i == 0 || u.Priority < p.priority {
			p.priority, p.milli, p.youngest = u.Priority, 0, u.started()
		}
		held := int32(min(u.claim.Charge.Milli+int64(len(u.Takes)), maxGPUs*gpuMilli)) // charges are rounded down
		if u.Priority == p.priority {
			p.milli = min(p.milli+held, maxGPUs*gpuMilli)
			p.youngest = max(p.youngest, u.started())
		}
		p.largest = max(p.largest, held)
	}
	p.held = len(n.holders) > 0
	for _, b := range n.pools {
		p.kind, p.idle, p.partly, p.slices = b.kind, uint8(b.idle), b.partly, 0
		if b.kind >= 0 {
			p.slices = int32(s.kinds[b.kind].Slices)
		}
		s.evictables[b.id] = p
	}
}
