package place

import (
	"errors"
	"fmt"
)

// ErrNoRoom is wrapped by Place's error when no node can take the request now.
var ErrNoRoom = errors.New("no room")

// changesPerArrival is how many changes of the snapshot age prices as much as an
// arrival does: what arrives starts and ends, and now and then a node changes.
const changesPerArrival = 4

// firstReview is after how many arrivals the demand is first looked at anew;
// from then on whenever their number has doubled.
const firstReview = 100

// Planner answers questions about one snapshot. It learns the demand from what
// arrives ([Planner.Arrive]) and from history ([Planner.Learn]). It is not safe
// for concurrent use.
type Planner struct {
	snap        *Snapshot
	policy      Policy
	weights     Weights
	shapes      map[shapeKey]*shape
	crowded     int // number of shapes at which to look for some to forget
	looks       int // for shapes to forget
	demand      *demand
	quotas      *Quotas // nil: none
	ranked      *standings
	rough, fine *waste // estimates of two precisions
	prices      *prices
	places      *places
	turnover    turnover
	largest     struct{ cpu, milli int64 } // node with GPUs

	taught     bool // by Learn
	arrivals   int64
	nextLearn  int64
	nextPrice  int64 // arrivals at which to compute prices again
	stalePrice int64 // or changes of the snapshot
	lessons    int   // how often the demand was learned
	epoch      int   // how often prices were computed

	steps   divider // by Weights.StepMilli
	perStep int64   // points of one step of cost

	last struct { // what was asked for last
		key   shapeKey
		shape *shape
	}

	shares []int32 // scratch
	cells  []int   // scratch
	tied   []int32 // scratch
}

// Placement is an answer: where a task goes.
type Placement struct {
	NodeID string
	Usage  Usage // ready for Snapshot.Apply
	Score  int64 // thousandths; the higher the better
}

// NewPlanner plans for a snapshot, which the caller goes on updating.
func NewPlanner(s *Snapshot, policy Policy, w Weights) *Planner {
	if policy == PolicyDefault {
		policy = PolicyBalanced
	}
	w.DemandShapes = max(1, w.DemandShapes)
	p := &Planner{snap: s, policy: policy, weights: w, shapes: map[shapeKey]*shape{}, demand: &demand{}}
	p.steps = newDivider(w.StepMilli)
	p.perStep = stepTerm * w.FragmentationMilli / 1000
	p.rough = newWaste(w.Rough)
	p.fine = p.rough
	if w.Fine.Streams > 0 {
		p.fine = newWaste(w.Fine)
	}
	p.relearn()
	p.nextLearn = firstReview
	return p
}

// shapeOf returns the shape of a request, known or new, under the policy that
// it is placed by.
func (p *Planner) shapeOf(r *Request) *shape {
	key := keyOf(r)
	if key.policy == PolicyDefault {
		key.policy = p.policy
	}
	if p.last.shape != nil && p.last.key == key {
		return p.last.shape // Arrive, then Place
	}
	sh := p.shapes[key]
	if sh == nil {
		if len(p.shapes) >= p.crowded {
			p.forget()
		}
		sh = newShape(r)
		sh.req.Policy = key.policy
		sh.index = &index{feed: p.snap.feed(sh)}
		p.shapes[key] = sh
	}
	p.last.key, p.last.shape = key, sh
	return sh
}

// forgetAtLeast is how many new shapes come at least between two looks for what
// nobody uses any more.
const forgetAtLeast = 64

// forget makes shapes that came once cost little: indexes that are far behind, or
// that nobody has asked since the last look, are dropped and, where there are many
// shapes, those that nobody has asked about either and of which the demand holds no
// task. Many is twice what the demand holds, so that half or more of them are not
// in it. The next look is a part of the number of shapes away: looks cost each of
// them no more, however many there are.
func (p *Planner) forget() {
	many := len(p.shapes) >= 2*p.weights.DemandShapes
	for key, sh := range p.shapes {
		_, near := p.behind(sh.index)
		idle := sh.index.look < p.looks
		switch {
		case many && idle && sh.entry < 0:
			delete(p.shapes, key)
		case idle || !near:
			*sh.index = index{feed: sh.index.feed}
		}
	}
	p.looks++
	p.crowded = len(p.shapes) + max(forgetAtLeast, len(p.shapes)/8)
}

// Learn sets the prior demand: what a cluster like this has run before. It
// need not be right: it counts for as many arrivals as it has tasks, within
// [Weights.GuessTasks] and [Weights.HistoryTasks]. Without it a general mix is
// assumed.
func (p *Planner) Learn(history []Request) {
	p.taught = true
	p.demand.forgetPrior(max(p.weights.GuessTasks, min(int64(len(history)), p.weights.HistoryTasks)))
	for i := range history {
		p.demand.count(p.shapeOf(&history[i]), prior)
		p.demand.thin(p.weights.DemandShapes) // each time: a history may have many shapes
	}
	p.relearn()
}

// Arrive tells the planner that a request has arrived. Call it once per
// request, before the first Place.
func (p *Planner) Arrive(r *Request) {
	p.demand.arrive(p.shapeOf(r))
	p.demand.thin(p.weights.DemandShapes)
	p.arrivals++
	if p.arrivals >= p.nextLearn {
		p.nextLearn *= 2
		p.review()
	} else if p.arrivals >= p.nextPrice {
		p.recompute()
	}
}

// Started tells the planner that a task has started, and Ended that one has ended:
// what room is worth depends on whether tasks end. Call them once per task, besides
// [Snapshot.Apply] and [Snapshot.Release]; work that moves does neither.
func (p *Planner) Started() { p.turnover.start() }

// Ended tells the planner that a task has ended; see [Planner.Started].
func (p *Planner) Ended() { p.turnover.end() }

// ExpectEnds tells the planner to begin as in a cluster where as many tasks end as
// start, not as in one that only fills up: a service that has just come up has seen
// neither, and real clusters live.
func (p *Planner) ExpectEnds() {
	p.turnover.rate = 1
	p.recompute()
}

// flow notices that tasks have begun to end, or ceased to: then all verdicts are
// about the wrong things.
func (p *Planner) flow() {
	if p.turnover.change() {
		p.lessons++
	}
}

// review learns the demand again when it is no longer what was learned.
func (p *Planner) review() {
	if p.demand.drift()*1000 >= float64(p.weights.DriftMilli) {
		p.relearn()
	} else {
		p.recompute()
	}
}

func (p *Planner) relearn() {
	if !p.taught {
		p.assume()
	}
	p.demand.learn()
	p.rough.learn(p.snap, p.demand)
	if p.fine != p.rough {
		p.fine.learn(p.snap, p.demand)
	}
	p.largest.cpu, p.largest.milli = p.snap.largestNode()
	p.places = newPlaces(p.snap, p.demand, p.demand.weights())
	p.lessons++
	p.recompute()
}

func (p *Planner) recompute() {
	p.flow()
	now := newPrices(p.snap, p.demand, &p.weights)
	was := p.places.price
	p.places.setPrices(p.snap, p.demand, p.demand.weights(), p.snap.freeMilli(), p.turnover.rate)
	now.fill(1 - p.turnover.rate)
	if p.turnover.lives {
		now.spare = spareAt(p.snap.cpuPerGPU(), p.turnover.rate)
	}
	if p.prices == nil || !p.prices.equal(now) || p.places.price != was {
		p.prices = now
		p.epoch++
	}
	every := max(p.weights.RepriceEvery, p.weights.RepriceEvery*int64(len(p.snap.banks))/1200)
	p.nextPrice, p.stalePrice = p.arrivals+every, p.snap.each.log.end()+changesPerArrival*every
}

// Place finds the best node for a request now. It does not book anything: pass
// the Placement's usage to [Snapshot.Apply]. When nothing fits the error wraps
// ErrNoRoom, and [Planner.Explain] says why; ErrQuota when a limit forbids it.
func (p *Planner) Place(r *Request) (Placement, error) {
	if err := r.Validate(); err != nil {
		return Placement{}, err
	}
	p.prepare()
	sh := p.shapeOf(r)
	if p.quotas != nil {
		if err := p.quotas.limited(p.snap, r.Queue, p.leastCharge(sh)); err != nil {
			return Placement{}, fmt.Errorf("place %q: %w", r.ID, err)
		}
	}
	pl, err := p.placeShape(r, sh)
	if err != nil {
		return pl, err
	}
	over := p.withinLimits(&pl.Usage)
	if over == nil || r.most != (Charge{}) {
		return pl, over
	}
	cheaper := *r // another kind of GPU may cost its queue less
	cheaper.most = p.quotas.left(p.snap, r.Queue).part(r.GPUs)
	if pl, err := p.placeShape(&cheaper, p.shapeOf(&cheaper)); err == nil {
		return pl, p.withinLimits(&pl.Usage)
	}
	return pl, over
}

func (p *Planner) placeShape(r *Request, sh *shape) (Placement, error) {
	ix := sh.index
	p.sync(ix, sh)
	id, ok := p.pick(ix, sh)
	if !ok {
		return Placement{}, fmt.Errorf("place %q: %w", r.ID, ErrNoRoom)
	}
	b := p.bankOf(ix, id)
	return Placement{NodeID: b.node.spec.ID, Usage: p.usage(r, sh, b), Score: int64(ix.levels[0][id])}, nil
}

// LeastCharge is the least that a quota would pay for the request on any kind of
// GPU that is known.
func (p *Planner) LeastCharge(r *Request) Charge { return p.leastCharge(p.shapeOf(r)) }

// prepare learns what the cluster has that the futures and prices do not know.
func (p *Planner) prepare() {
	switch {
	case len(p.prices.model) < len(p.snap.kinds):
		p.relearn()
	case p.snap.each.log.end() >= p.stalePrice:
		p.recompute()
	}
}

// placement is the answer that puts a request on a bank that fits it.
func (p *Planner) placement(r *Request, sh *shape, b *bank) Placement {
	return Placement{NodeID: b.node.spec.ID, Usage: p.usage(r, sh, b), Score: int64(p.score(sh, b))}
}

// leastCharge is the least that a quota would pay for the shape on any kind.
func (p *Planner) leastCharge(sh *shape) Charge {
	var least Charge
	found := false
	for id := range p.snap.kinds {
		nd := sh.need(p.snap, int32(id))
		if !nd.ok {
			continue
		}
		c := chargeOf(&p.snap.kinds[id], nd.take).Times(int64(sh.req.GPUs))
		if found {
			c = c.smaller(least)
		}
		least, found = c, true
	}
	return least
}

// withinLimits checks the quota for what a placement really takes: on some
// kinds of GPU memory rounds up to more than the least.
func (p *Planner) withinLimits(u *Usage) error {
	if p.quotas == nil || u.Queue == "" {
		return nil
	}
	return p.quotas.limited(p.snap, u.Queue, p.snap.Charge(u.NodeID, u.Takes))
}

func (p *Planner) usage(r *Request, sh *shape, b *bank) Usage {
	u := Usage{
		ID: r.ID, NodeID: b.node.spec.ID, Job: r.Job, Namespace: r.Namespace, Queue: r.Queue, Priority: r.Priority,
		CPUMHz: r.CPUMHz, MemoryMiB: r.MemoryMiB, MinRun: r.MinRun,
	}
	if r.GPUs == 0 {
		return u
	}
	ch := p.choose(sh, b, p.estimate(sh))
	nd := sh.need(p.snap, b.kind)
	for _, i := range ch.cells {
		t := nd.take
		t.GPU = b.gpus[i]
		u.Takes = append(u.Takes, t)
	}
	return u
}
