package place

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Queue is a team's claim on GPUs. Queues form trees: a parent's guarantee is
// shared by its children, and a child's usage counts for all its parents. An
// amount of 0 is not counted: a queue may be promised compute, memory or both.
type Queue struct {
	Name               string
	Parent             string // empty: a root
	GuaranteeMilli     int64  // GPU milli that are the queue's own
	LimitMilli         int64  // most that it may hold, borrowed included; 0: no limit
	GuaranteeMemoryMiB int64  // GPU memory that is the queue's own
	LimitMemoryMiB     int64
	// Protected work never gives way to a higher priority, only to those who
	// want back what it borrowed.
	Protected bool
}

func (c Queue) guarantee() Charge { return Charge{c.GuaranteeMilli, c.GuaranteeMemoryMiB} }

func (c Queue) limit() Charge { return Charge{c.LimitMilli, c.LimitMemoryMiB} }

// promised reports whether the queue has anything of its own.
func (c Queue) promised() bool { return c.guarantee() != Charge{} }

// ErrQuota is wrapped when a queue's limit forbids a placement.
var ErrQuota = errors.New("over quota")

// QuotaError says which limit forbids a placement. It wraps ErrQuota.
type QuotaError struct{ Why string }

func (e *QuotaError) Error() string { return ErrQuota.Error() + ": " + e.Why }

// Unwrap is ErrQuota.
func (e *QuotaError) Unwrap() error { return ErrQuota }

// Quotas are the queues of a cluster. What a queue does not use of its
// guarantee others may borrow, up to their limits; the owner gets it back by
// evicting borrowers ([Planner.Preempt]).
type Quotas struct {
	queues map[string]Queue
	names  []string // sorted
	paths  map[string][]string
}

// NewQuotas checks the queues: names are unique, parents exist, there is no
// cycle, a limit is at least the guarantee, and children are not promised more
// than their parent is. The error lists all that is wrong.
func NewQuotas(queues []Queue) (*Quotas, error) {
	q := &Quotas{queues: map[string]Queue{}, paths: map[string][]string{}}
	var errs []error
	for _, c := range queues {
		if c.Name == "" {
			errs = append(errs, errors.New("a queue has no name"))
			continue
		}
		if _, twice := q.queues[c.Name]; twice {
			errs = append(errs, fmt.Errorf("queue %q is there twice", c.Name))
			continue
		}
		q.queues[c.Name] = c
		q.names = append(q.names, c.Name)
	}
	slices.Sort(q.names)
	for _, name := range q.names {
		errs = append(errs, q.checkAmounts(q.queues[name]), q.checkTree(q.queues[name]))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, name := range q.names {
		q.paths[name] = q.climb(name)
	}
	return q, nil
}

func (q *Quotas) checkAmounts(c Queue) error {
	own, most := c.guarantee(), c.limit()
	if own.Milli < 0 || own.MemoryMiB < 0 || most.Milli < 0 || most.MemoryMiB < 0 {
		return fmt.Errorf("queue %q: a quota is negative", c.Name)
	}
	if !own.within(most) {
		return fmt.Errorf("queue %q is promised %s and may hold at most %s", c.Name, own, most)
	}
	var children Charge
	for _, name := range q.names {
		if q.queues[name].Parent == c.Name {
			children = children.Plus(q.queues[name].guarantee())
		}
	}
	if !children.within(own) {
		return fmt.Errorf("queue %q is promised %s, its children together %s", c.Name, own, children)
	}
	return nil
}

func (q *Quotas) checkTree(c Queue) error {
	if _, ok := q.queues[c.Parent]; c.Parent != "" && !ok {
		return fmt.Errorf("queue %q: parent %q does not exist", c.Name, c.Parent)
	}
	for at, steps := c.Parent, 0; at != ""; at, steps = q.queues[at].Parent, steps+1 {
		if at == c.Name || steps > len(q.queues) {
			return fmt.Errorf("queue %q is its own ancestor", c.Name)
		}
	}
	return nil
}

// path is the queue and its ancestors, the queue first; nil when unknown.
func (q *Quotas) path(name string) []string { return q.paths[name] }

func (q *Quotas) climb(name string) []string {
	var out []string
	for name != "" {
		c, ok := q.queues[name]
		if !ok {
			return out
		}
		out = append(out, name)
		name = c.Parent
	}
	return out
}

// Used is what a queue and its descendants hold.
func (q *Quotas) Used(s *Snapshot, name string) Charge {
	var sum Charge
	for _, o := range q.names {
		if held, ok := s.queues[o]; ok && slices.Contains(q.path(o), name) {
			sum = sum.Plus(held)
		}
	}
	return sum
}

// Borrowed is what a queue and its descendants hold beyond its guarantee. A
// queue without one has borrowed all that it holds.
func (q *Quotas) Borrowed(s *Snapshot, name string) Charge {
	c := q.queues[name]
	if !c.promised() {
		return q.Used(s, name)
	}
	return q.Used(s, name).beyond(c.guarantee())
}

// Excess is what a queue and its descendants hold beyond its limit: work that
// Nomad started without being told to.
func (q *Quotas) Excess(s *Snapshot, name string) Charge {
	return q.Used(s, name).beyond(q.queues[name].limit())
}

// Over says in a sentence which limit, of the queue or of one above it, forbids
// so much more; empty when none does.
func (q *Quotas) Over(s *Snapshot, name string, more Charge) string {
	if name == "" {
		return ""
	}
	path := q.path(name)
	if path == nil {
		return fmt.Sprintf("there is no queue %s", name)
	}
	for _, o := range path {
		held, most := q.Used(s, o), q.queues[o].limit()
		over := held.Plus(more).beyond(most)
		switch {
		case over.Milli > 0:
			return overText(o, gpus(held.Milli), gpus(most.Milli), gpus(more.Milli), "GPUs")
		case over.MemoryMiB > 0:
			return overText(o, fmt.Sprint(held.MemoryMiB), fmt.Sprint(most.MemoryMiB), fmt.Sprint(more.MemoryMiB), "MiB of GPU memory")
		}
	}
	return ""
}

func overText(queue, held, most, more, unit string) string {
	switch {
	case more == "0":
		return fmt.Sprintf("queue %s holds %s of at most %s %s", queue, held, most, unit)
	case held == "0":
		return fmt.Sprintf("queue %s may hold at most %s %s, and this needs %s", queue, most, unit, more)
	}
	return fmt.Sprintf("queue %s holds %s of at most %s %s, and this needs %s", queue, held, most, unit, more)
}

// limited is Over as an error.
func (q *Quotas) limited(s *Snapshot, name string, more Charge) error {
	if over := q.Over(s, name, more); over != "" {
		return &QuotaError{over}
	}
	return nil
}

// deficit is by how much a queue or one of its ancestors would exceed its limit
// with so much more.
func (q *Quotas) deficit(s *Snapshot, name string, more Charge) Charge {
	var over Charge
	for _, o := range q.path(name) {
		over = over.larger(q.Used(s, o).Plus(more).beyond(q.queues[o].limit()))
	}
	return over
}

// left is how much more a queue may hold; an amount that nothing bounds is 0, and
// one that is used up 1, the least that bounds.
func (q *Quotas) left(s *Snapshot, name string) Charge {
	var least Charge
	for _, o := range q.path(name) {
		used, most := q.Used(s, o), q.queues[o].limit()
		least.Milli = tighter(least.Milli, used.Milli, most.Milli)
		least.MemoryMiB = tighter(least.MemoryMiB, used.MemoryMiB, most.MemoryMiB)
	}
	return least
}

func tighter(least, used, most int64) int64 {
	if most == 0 {
		return least
	}
	free := max(1, most-used)
	if least == 0 {
		return free
	}
	return min(least, free)
}

// SetQuotas makes the planner keep quotas; nil for none.
func (p *Planner) SetQuotas(q *Quotas) { p.quotas = q }

// Order sorts pending requests as they should be tried.
func (p *Planner) Order(pending []Request) {
	part := map[string]int64{}
	for i := range pending {
		name := pending[i].Queue
		if _, ok := part[name]; !ok {
			part[name] = p.guaranteeUsed(name)
		}
	}
	slices.SortStableFunc(pending, func(a, b Request) int { return compareTurn(&a, &b, part[a.Queue], part[b.Queue]) })
}

// Compare orders two requests by whose turn it is: higher priority first, then
// the queue that has the smallest part of its guarantee in use, then the earlier
// submission, then the ID. What waits, what yields and what is let go follow it.
func (p *Planner) Compare(a, b *Request) int {
	if a.Queue == b.Queue {
		return compareTurn(a, b, 0, 0)
	}
	return compareTurn(a, b, p.guaranteeUsed(a.Queue), p.guaranteeUsed(b.Queue))
}

func compareTurn(a, b *Request, partA, partB int64) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(partA, partB), a.Submit.Compare(b.Submit), cmp.Compare(a.ID, b.ID))
}

// guaranteeUsed is the part of its guarantee that a queue has in use, in
// thousandths; a queue without a guarantee comes after all that have one.
func (p *Planner) guaranteeUsed(name string) int64 {
	if p.quotas == nil || name == "" {
		return 0
	}
	own := p.quotas.queues[name].guarantee()
	if own == (Charge{}) {
		return 1 << 40
	}
	used := p.quotas.Used(p.snap, name)
	return max(part(used.Milli, own.Milli), part(used.MemoryMiB, own.MemoryMiB))
}

func part(of, all int64) int64 {
	if all == 0 {
		return 0
	}
	return of * 1000 / all
}
