// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"cmp"
	"slices"
)

// Ranks are the ranks of all work on a ledger. They follow the ledger change by change
// ([Ranks.Follow]), and tell the rank of more work without a look at all that there is.
type Ranks struct {
	quotas *Quotas
	ledger *Ledger
	at     int64            // position in the ledger's changes; -1: all is to be read
	paths  map[string][]int // of a queue: it and those above it, as places in own
	own    []Charge         // guarantees
	trees  map[string]*tree // by the root
	ranked map[string]*held // by ID
}

// tree is the work of a root queue and those below it.
type tree struct {
	work  []*held // by priority, the highest first; of equal priority by who came first
	stale bool    // the guarantees have to be filled again
	// leaves is what work that fits into its guarantees takes of each queue's, by place, and
	// passed what other work takes of the root's.
	leaves [][]step
	passed []step
	rest   []*held // scratch
}

// held is work with its rank. Fields that are read of all work each time are copied from the claim.
type held struct {
	claim    *Claim
	priority int
	charge   Charge
	path     []int
	rank     Rank
	known    bool // the rank is
}

func newHeld(c *Claim, path []int) *held {
	return &held{claim: c, priority: c.Priority, charge: c.Charge, path: path}
}

// step is what work of a priority and above takes. Steps go down.
type step struct {
	priority int
	taken    Charge
}

// NewRanks ranks the work on a ledger, as of its first [Ranks.Follow].
func NewRanks(q *Quotas, l *Ledger) *Ranks {
	s := &Ranks{quotas: q, ledger: l, at: -1, paths: map[string][]int{}, trees: map[string]*tree{}, ranked: map[string]*held{}}
	place := map[string]int{}
	for i, name := range q.names {
		place[name] = i
		s.own = append(s.own, q.queues[name].Guarantee())
	}
	for _, name := range q.names {
		for _, above := range q.Path(name) {
			s.paths[name] = append(s.paths[name], place[above])
		}
		if q.queues[name].Parent == "" {
			s.trees[name] = &tree{leaves: make([][]step, len(q.names))}
		}
	}
	return s
}

// Of reports whether the ranks are by these quotas.
func (s *Ranks) Of(q *Quotas) bool { return s.quotas == q }

// Follow brings the ranks up to date with the ledger. It lists the work whose rank is
// another than before, or new.
func (s *Ranks) Follow() (changed []string) {
	changes, ok := s.ledger.since(s.at)
	for i := 0; ok && i < len(changes); i++ {
		ok = s.follow(changes[i])
	}
	if !ok {
		s.rebuild()
	}
	s.at = s.ledger.end()
	for _, t := range s.trees {
		if t.stale {
			changed = s.fill(t, changed)
		}
	}
	return changed
}

// Rank is the rank of work by its ID; ok is false where it is in no queue.
func (s *Ranks) Rank(id string) (r Rank, ok bool) {
	h := s.ranked[id]
	if h == nil {
		return r, false
	}
	return h.rank, true
}

// RankOf is the rank that a claim would have which is not on the books yet: it comes after
// all of its priority.
func (s *Ranks) RankOf(c Claim) Rank {
	path := s.paths[c.Queue]
	own := Unranked(c.Priority)
	if path == nil {
		return own
	}
	t, root := s.trees[s.quotas.root(c.Queue)], path[len(path)-1]
	if own.leaf = s.fits(path, c.Charge, func(at int) Charge { return takenFrom(t.leaves[at], c.Priority) }); own.leaf {
		own.root = true
		return own
	}
	own.root = s.passes(path, takenInAll(t.leaves[root]).Plus(takenFrom(t.passed, c.Priority)), c.Charge)
	return own
}

// Borrows reports whether a claim that is not on the books yet would be on what its queue
// borrows: the queue has a guarantee, and the claim does not fit into it.
func (s *Ranks) Borrows(c Claim) bool {
	return s.quotas.queues[c.Queue].promised() && !s.RankOf(c).leaf
}

// below is a path without its root; a queue that is its own root is its leaf too.
func below(path []int) []int { return path[:max(1, len(path)-1)] }

// fits reports whether a charge fits into the guarantees of its queue and those above it but
// the root, beside the amounts taken.
func (s *Ranks) fits(path []int, more Charge, taken func(at int) Charge) bool {
	if s.own[path[0]] == (Charge{}) {
		return false
	}
	for _, at := range below(path) {
		if !taken(at).Plus(more).Within(s.own[at]) {
			return false
		}
	}
	return true
}

// passes reports whether a charge that does not fit its leaf fits into the guarantee of the
// root, beside the amounts taken. Of a queue that is its own root it never does.
func (s *Ranks) passes(path []int, taken, more Charge) bool {
	own := s.own[path[len(path)-1]]
	return own != (Charge{}) && taken.Plus(more).Within(own)
}

func firmer(a, b *Claim) int { return cmp.Or(cmp.Compare(b.Priority, a.Priority), earlier(a, b)) }

// follow takes a change of the ledger over; ok is false where that was of work that is not there.
func (s *Ranks) follow(c change) (ok bool) {
	path := s.paths[c.claim.Queue]
	if path == nil {
		return true
	}
	t := s.trees[s.quotas.root(c.claim.Queue)]
	t.stale = true
	at, found := slices.BinarySearchFunc(t.work, c.claim, func(h *held, c *Claim) int { return firmer(h.claim, c) })
	switch {
	case c.freed && !found:
		return false
	case c.freed:
		t.work = slices.Delete(t.work, at, at+1)
		delete(s.ranked, c.claim.ID)
	default:
		h := newHeld(c.claim, path)
		t.work = slices.Insert(t.work, at, h)
		s.ranked[c.claim.ID] = h
	}
	return true
}

// rebuild takes all work from the ledger.
func (s *Ranks) rebuild() {
	was := s.ranked
	s.ranked = make(map[string]*held, len(was))
	for _, t := range s.trees {
		t.work, t.stale = nil, true
	}
	for _, name := range s.quotas.names {
		t := s.trees[s.quotas.root(name)]
		for _, c := range s.ledger.Claims(name) {
			h := newHeld(c, s.paths[name])
			if old := was[c.ID]; old != nil {
				h.rank, h.known = old.rank, old.known
			}
			t.work = append(t.work, h)
			s.ranked[c.ID] = h
		}
	}
	for _, t := range s.trees {
		slices.SortFunc(t.work, func(a, b *held) int { return firmer(a.claim, b.claim) })
	}
}

// fill fills the guarantees of one tree with its work: first those of the queues with what
// fits them, then the rest of the root's. It adds the work whose rank is new.
func (s *Ranks) fill(t *tree, changed []string) []string {
	taken := make([]Charge, len(s.own))
	of := func(at int) Charge { return taken[at] }
	for at := range t.leaves {
		t.leaves[at] = t.leaves[at][:0]
	}
	t.passed, t.stale = t.passed[:0], false
	rest := t.rest[:0]
	for _, h := range t.work {
		if !s.fits(h.path, h.charge, of) {
			rest = append(rest, h)
			continue
		}
		for _, at := range h.path { // the root too: children are not guaranteed more than their parent
			taken[at] = taken[at].Plus(h.charge)
			t.leaves[at] = stepDown(t.leaves[at], h.priority, taken[at])
		}
		changed = h.becomes(Rank{leaf: true, root: true, priority: h.priority}, changed)
	}
	var passed Charge
	for _, h := range rest {
		next := Unranked(h.priority)
		if next.root = s.passes(h.path, taken[h.path[len(h.path)-1]].Plus(passed), h.charge); next.root {
			passed = passed.Plus(h.charge)
			t.passed = stepDown(t.passed, h.priority, passed)
		}
		changed = h.becomes(next, changed)
	}
	clear(rest) // it holds on to what ends
	t.rest = rest
	return changed
}

// becomes notes a rank, and adds work whose rank is another than before.
func (h *held) becomes(r Rank, changed []string) []string {
	if h.known && h.rank == r {
		return changed
	}
	h.rank, h.known = r, true
	return append(changed, h.claim.ID)
}

// stepDown is the steps with the amount taken down to a priority, which is not above the last.
func stepDown(steps []step, priority int, taken Charge) []step {
	if last := len(steps) - 1; last >= 0 && steps[last].priority == priority {
		steps[last].taken = taken
		return steps
	}
	return append(steps, step{priority, taken})
}

// takenFrom is what work of a priority and above takes.
func takenFrom(steps []step, priority int) (taken Charge) {
	for _, st := range steps {
		if st.priority < priority {
			break
		}
		taken = st.taken
	}
	return taken
}

func takenInAll(steps []step) (taken Charge) {
	if last := len(steps) - 1; last >= 0 {
		taken = steps[last].taken
	}
	return taken
}
