// SPDX-License-Identifier: MPL-2.0

// Package quota keeps what teams were promised: queues in trees, each with a
// guarantee and a limit; what work holds of them; and which work gives way when an
// owner wants back what others borrowed. What the amounts are of is the caller's
// business: the package adds and compares them.
package quota

import (
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
	// Protected work never gives way to a higher priority, only to owners who
	// want their GPUs back.
	Protected bool
}

// Guarantee is the queue's own part.
func (c Queue) Guarantee() Charge { return Charge{c.GuaranteeMilli, c.GuaranteeMemoryMiB} }

// Limit is the most that the queue may hold.
func (c Queue) Limit() Charge { return Charge{c.LimitMilli, c.LimitMemoryMiB} }

// promised reports whether the queue has anything of its own.
func (c Queue) promised() bool { return c.Guarantee() != Charge{} }

// ErrOver is wrapped when a queue's limit forbids a placement.
var ErrOver = errors.New("over quota")

// Error says which limit forbids a placement. It wraps ErrOver.
type Error struct{ Why string }

func (e *Error) Error() string { return ErrOver.Error() + ": " + e.Why }

// Unwrap is ErrOver.
func (e *Error) Unwrap() error { return ErrOver }

// Quotas are the queues of a cluster. What a queue does not use of its
// guarantee others may borrow, up to their limits; the owner gets it back by
// evicting borrowers.
type Quotas struct {
	queues map[string]Queue
	names  []string // sorted
	paths  map[string][]string
}

// New checks the queues: names are unique, parents exist, there is no
// cycle, a limit is at least the guarantee, and children are not promised more
// than their parent is. The error lists all that is wrong.
func New(queues []Queue) (*Quotas, error) {
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
	own, most := c.Guarantee(), c.Limit()
	if own.Milli < 0 || own.MemoryMiB < 0 || most.Milli < 0 || most.MemoryMiB < 0 {
		return fmt.Errorf("queue %q: a quota is negative", c.Name)
	}
	if !own.Within(most) {
		return fmt.Errorf("queue %q is promised %s and may hold at most %s", c.Name, own, most)
	}
	var children Charge
	for _, name := range q.names {
		if q.queues[name].Parent == c.Name {
			children = children.Plus(q.queues[name].Guarantee())
		}
	}
	if !children.Within(own) {
		return fmt.Errorf("queue %q is promised %s, its children together %s", c.Name, own, children)
	}
	return nil
}

func (q *Quotas) checkTree(c Queue) error {
	if _, ok := q.queues[c.Parent]; c.Parent != "" && !ok {
		return fmt.Errorf("queue %q: parent %q does not exist", c.Name, c.Parent)
	}
	for at, steps := c.Parent, 0; at != ""; at, steps = q.queues[at].Parent, steps+1 {
		if steps == len(q.queues) {
			return fmt.Errorf("queue %q is its own ancestor", c.Name)
		}
	}
	return nil
}

// Queue is a queue by its name; nothing is promised to an unknown one.
func (q *Quotas) Queue(name string) Queue { return q.queues[name] }

// Names are those of the queues, sorted.
func (q *Quotas) Names() []string { return q.names }

// Path is the queue and its ancestors, the queue first; nil when unknown.
func (q *Quotas) Path(name string) []string { return q.paths[name] }

func (q *Quotas) climb(name string) []string {
	var out []string
	for ; name != ""; name = q.queues[name].Parent {
		out = append(out, name)
	}
	return out
}

// isWithin reports whether a queue is another or lies below it.
func (q *Quotas) isWithin(name, top string) bool { return slices.Contains(q.paths[name], top) }

// Used is what a queue and its descendants hold.
func (q *Quotas) Used(b Books, name string) Charge {
	var sum Charge
	for _, o := range q.names {
		if q.isWithin(o, name) {
			sum = sum.Plus(b.Held(o))
		}
	}
	return sum
}

// Borrowed is what a queue and its descendants hold beyond its guarantee. A
// queue without one has borrowed all that it holds.
func (q *Quotas) Borrowed(b Books, name string) Charge {
	c := q.queues[name]
	if !c.promised() {
		return q.Used(b, name)
	}
	return q.Used(b, name).Beyond(c.Guarantee())
}

// Excess is what a queue and its descendants hold beyond its limit: work that
// Nomad started without being told to.
func (q *Quotas) Excess(b Books, name string) Charge {
	return q.Used(b, name).Beyond(q.queues[name].Limit())
}

// Over says in a sentence which limit, of the queue or of one above it, forbids
// so much more; empty when none does.
func (q *Quotas) Over(b Books, name string, more Charge) string {
	if name == "" {
		return ""
	}
	path := q.Path(name)
	if path == nil {
		return fmt.Sprintf("there is no queue %s", name)
	}
	for _, o := range path {
		held, most := q.Used(b, o), q.queues[o].Limit()
		over := held.Plus(more).Beyond(most)
		switch {
		case over.Milli > 0:
			return overText(o, GPUs(held.Milli), GPUs(most.Milli), GPUs(more.Milli), "GPUs")
		case over.MemoryMiB > 0:
			return overText(o, memoryOrNone(held.MemoryMiB), Memory(most.MemoryMiB), memoryOrNone(more.MemoryMiB), "of GPU memory")
		}
	}
	return ""
}

// memoryOrNone is an amount of memory; "0" for none.
func memoryOrNone(mib int64) string {
	if mib == 0 {
		return "0"
	}
	return Memory(mib)
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

// Limited is Over as an error.
func (q *Quotas) Limited(b Books, name string, more Charge) error {
	if over := q.Over(b, name, more); over != "" {
		return &Error{over}
	}
	return nil
}

// Deficit is by how much a queue or one of its ancestors would exceed its limit
// with so much more.
func (q *Quotas) Deficit(b Books, name string, more Charge) Charge {
	var over Charge
	for _, o := range q.Path(name) {
		over = over.Larger(q.Used(b, o).Plus(more).Beyond(q.queues[o].Limit()))
	}
	return over
}

// Left is how much more a queue may hold; an amount that nothing bounds is 0, and
// one that is used up 1, the least that bounds.
func (q *Quotas) Left(b Books, name string) Charge {
	var least Charge
	for _, o := range q.Path(name) {
		used, most := q.Used(b, o), q.queues[o].Limit()
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
