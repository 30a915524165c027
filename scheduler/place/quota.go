package place

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Queue is a team's claim on GPUs. Queues form trees: a parent's guarantee is
// shared by its children, and a child's usage counts for all its parents.
type Queue struct {
	Name           string
	Parent         string // empty: a root
	GuaranteeMilli int64  // GPU milli that are the queue's own
	LimitMilli     int64  // most that it may hold, borrowed included; 0: no limit
}

// ErrQuota is wrapped when a queue's limit forbids a placement.
var ErrQuota = errors.New("over quota")

// Quotas are the queues of a cluster. What a queue does not use of its
// guarantee others may borrow, up to their limits; the owner gets it back by
// evicting borrowers ([Planner.Preempt]).
type Quotas struct {
	queues map[string]Queue
	names  []string // sorted
}

// NewQuotas checks the queues: names are unique, parents exist, there is no
// cycle, a limit is at least the guarantee, and children are not guaranteed
// more than their parent.
func NewQuotas(queues []Queue) (*Quotas, error) {
	q := &Quotas{queues: map[string]Queue{}}
	for _, c := range queues {
		if _, twice := q.queues[c.Name]; c.Name == "" || twice {
			return nil, fmt.Errorf("check quotas: queue %q has no name or is listed twice", c.Name)
		}
		if c.GuaranteeMilli < 0 || c.LimitMilli < 0 || (c.LimitMilli > 0 && c.LimitMilli < c.GuaranteeMilli) {
			return nil, fmt.Errorf("check quotas: queue %q: guarantee %d, limit %d milli", c.Name, c.GuaranteeMilli, c.LimitMilli)
		}
		q.queues[c.Name] = c
		q.names = append(q.names, c.Name)
	}
	slices.Sort(q.names)
	for _, name := range q.names {
		if err := q.checkTree(name); err != nil {
			return nil, err
		}
	}
	return q, nil
}

func (q *Quotas) checkTree(name string) error {
	c := q.queues[name]
	if c.Parent != "" {
		if _, ok := q.queues[c.Parent]; !ok {
			return fmt.Errorf("check quotas: queue %q: no parent %q", name, c.Parent)
		}
	}
	for at, steps := c.Parent, 0; at != ""; at, steps = q.queues[at].Parent, steps+1 {
		if at == name || steps > len(q.queues) {
			return fmt.Errorf("check quotas: queue %q is its own ancestor", name)
		}
	}
	var children int64
	for _, o := range q.names {
		if q.queues[o].Parent == name {
			children += q.queues[o].GuaranteeMilli
		}
	}
	if children > c.GuaranteeMilli && children > 0 {
		return fmt.Errorf("check quotas: children of queue %q are guaranteed %d milli, itself %d", name, children, c.GuaranteeMilli)
	}
	return nil
}

// path is the queue and its ancestors, the queue first; nil when unknown.
func (q *Quotas) path(name string) []string {
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

// Used is what a queue and its descendants hold, in GPU milli.
func (q *Quotas) Used(s *Snapshot, name string) int64 {
	var sum int64
	for _, o := range q.names {
		if held := s.queues[o]; held != 0 && slices.Contains(q.path(o), name) {
			sum += held
		}
	}
	return sum
}

// limited reports the first queue on the path whose limit so much more would
// break.
func (q *Quotas) limited(s *Snapshot, name string, more int64) error {
	if name == "" {
		return nil
	}
	path := q.path(name)
	if path == nil {
		return fmt.Errorf("%w: no queue %q", ErrQuota, name)
	}
	for _, o := range path {
		if c := q.queues[o]; c.LimitMilli > 0 && q.Used(s, o)+more > c.LimitMilli {
			return fmt.Errorf("%w: queue %q holds %d of at most %d milli, %d more are asked for", ErrQuota, o, q.Used(s, o), c.LimitMilli, more)
		}
	}
	return nil
}

// usedAll is Used for every queue.
func (q *Quotas) usedAll(s *Snapshot) map[string]int64 {
	used := make(map[string]int64, len(q.names))
	for _, o := range q.names {
		if held := s.queues[o]; held != 0 {
			for _, up := range q.path(o) {
				used[up] += held
			}
		}
	}
	return used
}

// deficit is by how much a queue or one of its ancestors would exceed its limit
// with so much more.
func (q *Quotas) deficit(used map[string]int64, name string, more int64) int64 {
	var over int64
	for _, o := range q.path(name) {
		if c := q.queues[o]; c.LimitMilli > 0 {
			over = max(over, used[o]+more-c.LimitMilli)
		}
	}
	return over
}

// SetQuotas makes the planner keep quotas; nil for none.
func (p *Planner) SetQuotas(q *Quotas) { p.quotas = q }

// Order sorts pending requests as they should be tried: higher priority first,
// then the queue that has the smallest part of its guarantee in use, then the
// earlier submission, then the ID.
func (p *Planner) Order(pending []Request) {
	part := map[string]int64{}
	for i := range pending {
		name := pending[i].Queue
		if _, ok := part[name]; !ok {
			part[name] = p.guaranteeUsed(name)
		}
	}
	slices.SortStableFunc(pending, func(a, b Request) int {
		return cmp.Or(
			cmp.Compare(b.Priority, a.Priority), cmp.Compare(part[a.Queue], part[b.Queue]),
			a.Submit.Compare(b.Submit), cmp.Compare(a.ID, b.ID),
		)
	})
}

// guaranteeUsed is the part of its guarantee that a queue has in use, in
// thousandths; a queue without a guarantee comes after all that have one.
func (p *Planner) guaranteeUsed(name string) int64 {
	if p.quotas == nil || name == "" {
		return 0
	}
	c := p.quotas.queues[name]
	if c.GuaranteeMilli == 0 {
		return 1 << 40
	}
	return p.quotas.Used(p.snap, name) * 1000 / c.GuaranteeMilli
}
