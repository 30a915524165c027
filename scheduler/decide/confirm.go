package decide

import "github.com/nomad-gpu/nomad-gpu/scheduler/nomad"

// Confirm compares what the book believes of a node with its allocs as Nomad
// listed them at an index, and reports whether both are the same. What is gone
// without a word is taken off the book; news that the book has not heard yet
// will reach it with the event stream.
func (b *Book) Confirm(nodeID string, allocs []*nomad.Alloc, index uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	same := true
	listed := map[string]bool{}
	for _, a := range allocs {
		listed[a.ID] = a.Holds()
		have := b.allocs[a.ID]
		if a.Holds() && (have == nil || have.Stopping != a.Stopping) {
			same = false
		}
	}
	for id, a := range b.allocs {
		if a.NodeID != nodeID || listed[id] {
			continue
		}
		same = false
		if a.Index <= index {
			b.allocGone(id)
			b.version++
		}
	}
	return same
}
