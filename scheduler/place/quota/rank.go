// SPDX-License-Identifier: MPL-2.0

package quota

import "cmp"

// Rank is how firmly work holds its place. Work may only be evicted by work of
// higher rank:
//
//	root, leaf, priority
//
// compared in this order. leaf says that the work fits into the guarantee of its
// queue and of all queues above it but the root; root that it fits into the
// guarantee of the root. Guarantees are filled by priority, of equal priority by
// age; work that does not fit is passed over. In the root's guarantee work
// that fits its leaf comes before work that does not. Work without a queue has
// neither, and so does work of a queue without a guarantee; a queue above it
// without one bounds nothing.
//
// A new task only changes the rank of work below its own, and so does the end of
// work below it. Every eviction thus raises the list of all ranks, highest first,
// in alphabetical order: tasks cannot evict each other in a cycle.
type Rank struct {
	root, leaf bool
	priority   int
}

// Unranked is the rank of work that no quota counts.
func Unranked(priority int) Rank { return Rank{priority: priority} }

// Compare is positive when a is the higher.
func (a Rank) Compare(b Rank) int {
	return cmp.Or(compareBool(a.root, b.root), compareBool(a.leaf, b.leaf), cmp.Compare(a.priority, b.priority))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Yields reports whether work gives way to a claim of higher rank. Equal or higher
// priority, and work of a protected queue, only gives way where it is on what its
// queue has borrowed, or has no queue, and the claim's queue wants its own: never
// in the same queue, and not across trees of queues while its tree is within its
// guarantee.
func (q *Quotas) Yields(work, claim Rank, workQueue, claimQueue string) bool {
	if claim.Compare(work) <= 0 {
		return false
	}
	higher := claim.priority > work.priority && !q.queues[workQueue].Protected
	if workQueue == claimQueue {
		return higher
	}
	apart := q.root(workQueue) != q.root(claimQueue)
	return higher || (claim.leaf && !work.leaf && !(apart && work.root))
}

// root is the last queue on a path.
func (q *Quotas) root(name string) string {
	path := q.Path(name)
	if len(path) == 0 {
		return ""
	}
	return path[len(path)-1]
}
