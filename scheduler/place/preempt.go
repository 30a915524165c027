package place

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Plan makes room for a group of requests: end the victims, then place.
type Plan struct {
	Placements []Placement // in the order of the requests
	Victims    []Usage     // by ID; none when there was room
}

// PlaceGang places all requests or none. The larger are placed first; the
// answers are in the order of the requests. Nothing is booked.
func (p *Planner) PlaceGang(rs []Request) ([]Placement, error) {
	t := p.begin()
	defer t.rollback()
	out := make([]Placement, len(rs))
	for _, i := range bySize(rs) {
		pl, err := p.Place(&rs[i])
		if err != nil {
			return nil, fmt.Errorf("place group of %d: %w", len(rs), err)
		}
		if err := t.apply(pl.Usage); err != nil {
			return nil, err
		}
		out[i] = pl
	}
	return out, nil
}

// bySize returns positions in descending size of the requests.
func bySize(rs []Request) []int {
	order := make([]int, len(rs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &rs[a], &rs[b]
		return cmp.Or(cmp.Compare(milliOf(y), milliOf(x)), cmp.Compare(y.CPUMHz, x.CPUMHz))
	})
	return order
}

// Preempt plans evictions that let a group of requests start together: victims
// of the lowest priority, as few as possible, with the least work lost, never
// of equal or higher priority unless they are on quota that the request's
// queue wants back. Work on what the group does not need is given back. The
// snapshot is left as it was. The error wraps ErrNoRoom when no evictions that
// are allowed would help, and ErrQuota when a limit forbids it.
func (p *Planner) Preempt(rs []Request, now time.Time) (Plan, error) {
	t := p.begin()
	defer t.rollback()
	plan := Plan{Placements: make([]Placement, len(rs))}
	spared := map[string]bool{} // the group itself, and who is a victim already
	for i := range rs {
		spared[rs[i].ID] = true
	}
	for _, i := range bySize(rs) {
		pl, victims, err := p.makeRoom(t, &rs[i], now, spared)
		if err != nil {
			return Plan{}, err
		}
		for _, u := range victims {
			spared[u.ID] = true
		}
		plan.Placements[i] = pl
		plan.Victims = append(plan.Victims, victims...)
	}
	plan.Victims = t.giveBack(plan.Victims, now)
	return plan, nil
}

// makeRoom places one request, with evictions where it must, and books it all
// in the transaction.
func (p *Planner) makeRoom(t *transaction, r *Request, now time.Time, spared map[string]bool) (Placement, []Usage, error) {
	pl, err := p.Place(r)
	if err == nil {
		return pl, nil, t.apply(pl.Usage)
	}
	if verr := r.Validate(); verr != nil {
		return Placement{}, nil, verr
	}
	sh, _ := p.shapeOf(r)
	e := p.newEviction(r, sh, now, spared)
	sp := e.best(sh)
	if sp == nil {
		return Placement{}, nil, fmt.Errorf("preempt for %q: %w", r.ID, err)
	}
	var victims []Usage
	for _, u := range sp.victims {
		victims = append(victims, *u)
	}
	for i := range victims {
		if err := t.release(victims[i].ID); err != nil {
			return Placement{}, nil, err
		}
	}
	pl = p.placement(r, sh, sp.bank)
	if err := p.withinLimits(&pl.Usage); err != nil {
		return Placement{}, nil, fmt.Errorf("preempt for %q: %w", r.ID, err)
	}
	return pl, victims, t.apply(pl.Usage)
}

// searched is how many banks are searched for victims: those with the lowest
// priorities. More are only when none of these will do.
const searched = 128

// best finds the cheapest victims.
func (e *eviction) best(sh *shape) *spoils {
	first, rest := e.promising(sh)
	if sp := e.cheapest(sh, first); sp != nil {
		return sp
	}
	return e.cheapest(sh, rest)
}

func (e *eviction) cheapest(sh *shape, banks []*bank) *spoils {
	var best *spoils
	for _, b := range banks {
		if sp, ok := e.search(sh, b); ok && (best == nil || compareSpoils(sp, best) < 0) {
			best = sp
		}
	}
	return best
}

// promising lists the banks that could hold the shape if they were emptied and
// that hold something that may have to go: first the searched most promising
// ones, then the rest.
func (e *eviction) promising(sh *shape) (first, rest []*bank) {
	reclaim := e.p.quotas != nil && e.r.Queue != ""
	for _, b := range e.p.snap.banks {
		if b == nil || len(b.node.holders) == 0 || (b.node.low.priority >= e.r.Priority && !reclaim) || !e.p.snap.could(sh, b) {
			continue
		}
		at := len(first)
		for at > 0 && comparePromise(b, first[at-1]) < 0 {
			at--
		}
		if at == searched {
			rest = append(rest, b)
			continue
		}
		if len(first) == searched {
			rest = append(rest, first[searched-1])
			first = first[:searched-1]
		}
		first = slices.Insert(first, at, b)
	}
	return first, rest
}

// comparePromise orders banks by the lowest priority on their node, then by how
// much GPU that priority holds there.
func comparePromise(a, b *bank) int {
	return cmp.Or(cmp.Compare(a.node.low.priority, b.node.low.priority), cmp.Compare(b.node.low.milli, a.node.low.milli))
}

// transaction books changes in the snapshot and takes them back.
type transaction struct {
	s    *Snapshot
	undo []func()
}

func (p *Planner) begin() *transaction { return &transaction{s: p.snap} }

func (t *transaction) apply(u Usage) error {
	if err := t.s.Apply(u); err != nil {
		return err
	}
	t.undo = append(t.undo, func() { t.s.mustRelease(u.ID) })
	return nil
}

func (t *transaction) release(id string) error {
	u, err := t.s.Release(id)
	if err != nil {
		return err
	}
	t.undo = append(t.undo, func() { t.s.restore(u) })
	return nil
}

func (t *transaction) rollback() {
	for _, u := range slices.Backward(t.undo) {
		u()
	}
	t.undo = nil
}

// giveBack returns the victims that must go: all those that no longer fit next
// to the group, tried in order of what their loss would cost.
func (t *transaction) giveBack(victims []Usage, now time.Time) []Usage {
	slices.SortFunc(victims, func(a, b Usage) int {
		return cmp.Or(
			cmp.Compare(b.Priority, a.Priority), cmp.Compare(b.lostMilliSeconds(now), a.lostMilliSeconds(now)),
			cmp.Compare(a.ID, b.ID),
		)
	})
	var gone []Usage
	for _, u := range victims {
		if t.apply(u) != nil {
			gone = append(gone, u)
		}
	}
	slices.SortFunc(gone, func(a, b Usage) int { return cmp.Compare(a.ID, b.ID) })
	return gone
}
