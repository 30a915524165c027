package place

import (
	"cmp"
	"slices"
)

// standing is how firmly work holds its place. Work may only be evicted by work
// of higher standing:
//
//	root, leaf, priority
//
// compared in this order. leaf says that the work fits into the guarantee of
// its queue and of all queues above it but the root; root that it fits into the
// guarantee of the root. Guarantees are filled by priority, of equal priority
// by who came first; what does not fit is passed over. In the root's guarantee
// work that fits its leaf comes before work that does not. Work without a queue
// has neither, and so does work of a queue without a guarantee; a queue above it
// without one bounds nothing.
//
// A new task only changes the standing of work below its own, and so does the
// end of work below it. Every eviction thus raises the list of all standings,
// highest first, in alphabetical order: tasks cannot evict each other in a
// cycle.
type standing struct {
	root, leaf bool
	priority   int
}

func (a standing) compare(b standing) int {
	return cmp.Or(compareBool(a.root, b.root), compareBool(a.leaf, b.leaf), cmp.Compare(a.priority, b.priority))
}

// earlier orders by who came first: what has started, by its start, then what
// has not; of equals what was booked first.
func earlier(a, b *Usage) int {
	return cmp.Or(compareBool(a.Start.IsZero(), b.Start.IsZero()), a.Start.Compare(b.Start), cmp.Compare(a.seq, b.seq))
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

// standings knows the standing of all work in queues.
type standings struct {
	q       *Quotas
	of      map[string]standing // by usage ID
	through int64               // position in the change log that it holds for
}

// root is the last queue on a path.
func (q *Quotas) root(name string) string {
	path := q.path(name)
	if len(path) == 0 {
		return ""
	}
	return path[len(path)-1]
}

// standings computes all standings, once per change of the snapshot.
func (p *Planner) standings() *standings {
	st := p.ranked
	if st != nil && st.q == p.quotas && st.through == p.snap.each.log.end() {
		return st
	}
	st = &standings{q: p.quotas, of: map[string]standing{}, through: p.snap.each.log.end()}
	for _, name := range p.quotas.names {
		if p.quotas.queues[name].Parent == "" {
			st.rank(p.snap, name, nil)
		}
	}
	p.ranked = st
	return st
}

// withRequest is the standing that a request would have.
func (st *standings) withRequest(s *Snapshot, r *Request, charge Charge) standing {
	root := st.q.root(r.Queue)
	if root == "" {
		return standing{priority: r.Priority}
	}
	own := &standings{q: st.q, of: map[string]standing{}}
	own.rank(s, root, &Usage{ID: r.ID, Queue: r.Queue, Priority: r.Priority, charge: charge, seq: 1 << 62})
	return own.of[r.ID]
}

// rank fills the guarantees of one tree with its work, and one more if given.
func (st *standings) rank(s *Snapshot, root string, more *Usage) {
	var work []*Usage
	for _, name := range st.q.names {
		if len(s.byQueue[name]) > 0 && st.q.root(name) == root {
			work = append(work, s.byQueue[name]...)
		}
	}
	if more != nil {
		work = append(work, more)
	}
	slices.SortFunc(work, func(a, b *Usage) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), earlier(a, b))
	})
	taken := map[string]Charge{}
	for _, u := range work {
		path := st.q.path(u.Queue)
		below := path[:max(1, len(path)-1)] // a queue that is its own root is its leaf too
		if !st.q.queues[u.Queue].promised() || !st.q.holds(taken, below, u.charge) {
			continue
		}
		for _, name := range path { // the root too: children are not guaranteed more than their parent
			taken[name] = taken[name].Plus(u.charge)
		}
		st.of[u.ID] = standing{leaf: true, root: true, priority: u.Priority}
	}
	for _, u := range work {
		if st.of[u.ID].leaf {
			continue
		}
		own := standing{priority: u.Priority}
		if u.Queue != root && st.q.queues[root].promised() && st.q.holds(taken, []string{root}, u.charge) {
			taken[root] = taken[root].Plus(u.charge)
			own.root = true
		}
		st.of[u.ID] = own
	}
}

// holds reports whether the guarantees of all queues have room for a charge
// more than is taken.
func (q *Quotas) holds(taken map[string]Charge, path []string, more Charge) bool {
	return !slices.ContainsFunc(path, func(name string) bool {
		return !taken[name].Plus(more).within(q.queues[name].guarantee())
	})
}
