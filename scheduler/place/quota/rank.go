package quota

import (
	"cmp"
	"math"
	"slices"
)

// Rank is how firmly work holds its place. Work may only be evicted by work of
// higher rank:
//
//	root, leaf, priority
//
// compared in this order. leaf says that the work fits into the guarantee of its
// queue and of all queues above it but the root; root that it fits into the
// guarantee of the root. Guarantees are filled by priority, of equal priority by
// who came first; what does not fit is passed over. In the root's guarantee work
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

// Ranks are the ranks of all work in queues, by ID.
type Ranks map[string]Rank

// Ranks works out the rank of all work on the books.
func (q *Quotas) Ranks(b Books) Ranks {
	ranks := Ranks{}
	for _, name := range q.names {
		if q.queues[name].Parent == "" {
			q.rank(b, name, nil, ranks)
		}
	}
	return ranks
}

// RankOf is the rank that a claim would have which is not on the books yet.
func (q *Quotas) RankOf(b Books, c Claim) Rank {
	root := q.root(c.Queue)
	if root == "" {
		return Unranked(c.Priority)
	}
	c.seq = math.MaxInt64
	ranks := Ranks{}
	q.rank(b, root, &c, ranks)
	return ranks[c.ID]
}

// Borrows reports whether a claim that is not on the books yet would be on what its queue
// borrows: the queue has a guarantee, and the claim does not fit into it.
func (q *Quotas) Borrows(b Books, c Claim) bool {
	if !q.queues[c.Queue].promised() {
		return false
	}
	taken, path := map[string]Charge{}, q.Path(c.Queue)
	below := path[:max(1, len(path)-1)]
	for _, name := range below {
		taken[name] = q.Used(b, name)
	}
	return !q.holds(taken, below, c.Charge) && !q.RankOf(b, c).leaf
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

// rank fills the guarantees of one tree with its work, and one more claim if given.
func (q *Quotas) rank(b Books, root string, more *Claim, ranks Ranks) {
	var work []*Claim
	for _, name := range q.names {
		if q.root(name) == root {
			work = append(work, b.Claims(name)...)
		}
	}
	if more != nil {
		work = append(work, more)
	}
	slices.SortFunc(work, func(a, b *Claim) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), earlier(a, b))
	})
	taken := map[string]Charge{}
	for _, c := range work {
		path := q.Path(c.Queue)
		below := path[:max(1, len(path)-1)] // a queue that is its own root is its leaf too
		if !q.queues[c.Queue].promised() || !q.holds(taken, below, c.Charge) {
			continue
		}
		for _, name := range path { // the root too: children are not guaranteed more than their parent
			taken[name] = taken[name].Plus(c.Charge)
		}
		ranks[c.ID] = Rank{leaf: true, root: true, priority: c.Priority}
	}
	for _, c := range work {
		if ranks[c.ID].leaf {
			continue
		}
		own := Unranked(c.Priority)
		if c.Queue != root && q.queues[root].promised() && q.holds(taken, []string{root}, c.Charge) {
			taken[root] = taken[root].Plus(c.Charge)
			own.root = true
		}
		ranks[c.ID] = own
	}
}

// holds reports whether the guarantees of all queues have room for a charge more
// than is taken.
func (q *Quotas) holds(taken map[string]Charge, path []string, more Charge) bool {
	return !slices.ContainsFunc(path, func(name string) bool {
		return !taken[name].Plus(more).Within(q.queues[name].Guarantee())
	})
}
