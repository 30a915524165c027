// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/score"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
)

// ErrNoRoom is wrapped by Place's error when no node can take the request now.
var ErrNoRoom = errors.New("no room")

// changesPerArrival is how many changes of the snapshot age prices as much as an
// arrival does: what arrives starts and ends, and now and then a node changes.
const changesPerArrival = 4

// Planner answers questions about one snapshot. It learns the demand from what
// arrives ([Planner.Arrive]) and from history ([Planner.Learn]). It is not safe
// for concurrent use.
type Planner struct {
	snap    *Snapshot
	weights Weights
	scorer  *score.Scorer // of the snapshot, with these weights
	policy  Policy
	shapes  map[fit.ShapeKey]*shape
	crowded int // number of shapes at which to look for some to forget
	sweeps  int // for shapes to forget
	demand  *forecast.Demand
	quotas  *Quotas     // nil: none
	past    *quota.Past // nil: none
	ranked  rankedWork
	trend   forecast.Trend
	arrived forecast.Arrivals
	caution int64 // of the prices, by wariness

	taught     bool // by Learn
	arrivals   int64
	nextLearn  int64
	nextPrice  int64 // arrivals at which to compute prices again
	stalePrice int64 // or changes of the snapshot
	coarse     bool  // when it was, where tasks end: livesCoarsely

	last struct { // the last request
		key   fit.ShapeKey
		shape *shape
	}
}

// shape is the shape of requests with what the planner remembers of it.
type shape struct {
	*score.Task              // by the policy of the request, or the planner's
	index       *score.Index // of the pools that it may go to
	refusals    *refusals    // of the nodes that cannot take it; nil until asked for
	sweep       int          // number of sweeps of the planner when the index was last asked
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
	p := &Planner{snap: s, weights: w, scorer: score.NewScorer(s, w), policy: policy, shapes: map[fit.ShapeKey]*shape{}, demand: &forecast.Demand{}}
	for _, g := range forecast.Guesses(0, 0) {
		p.trend.Expect(g.GPUs, g.Milli, float64(g.Tasks*w.GuessTasks)/100)
	}
	p.relearn()
	p.nextLearn = forecast.FirstReview
	return p
}

// Snapshot is the one that is planned for.
func (p *Planner) Snapshot() *Snapshot { return p.snap }

// shapeOf returns the shape of a request, known or new, under the policy that
// it is placed by.
func (p *Planner) shapeOf(r *Request) *shape {
	key := fit.KeyOf(r)
	if key.Policy == PolicyDefault {
		key.Policy = p.policy
	}
	if p.last.shape != nil && p.last.key == key {
		return p.last.shape // Arrive, then Place
	}
	sh := p.shapes[key]
	if sh == nil {
		if len(p.shapes) >= p.crowded {
			p.forget()
		}
		sh = &shape{Task: score.NewTask(fit.NewShape(r, p.snap), key.Policy)}
		sh.Req.Policy = key.Policy
		sh.index = score.NewIndex(p.scorer, sh.Task)
		p.shapes[key] = sh
	}
	p.last.key, p.last.shape = key, sh
	return sh
}

// indexOf is the index of a shape, brought up to date.
func (p *Planner) indexOf(sh *shape) *score.Index {
	sh.index.Sync()
	sh.sweep = p.sweeps
	return sh.index
}

// forgetAtLeast is how many new shapes come at least between two looks for what
// is unused.
const forgetAtLeast = 64

// forget makes shapes that came once cost little: indexes that are far behind, or
// that were not asked about since the last look, are dropped and, where there are many
// shapes, those that were not asked about either and whose tasks the demand does not
// hold. Many is twice the number that the demand holds, so that half or more of them are not
// in it. The next look is a part of the number of shapes away: looks cost each of
// them no more, however many there are.
func (p *Planner) forget() {
	many := len(p.shapes) >= 2*p.weights.DemandShapes
	for key, sh := range p.shapes {
		_, near := sh.index.Behind()
		idle := sh.sweep < p.sweeps
		switch {
		case many && idle && !sh.Demand.InDemand():
			delete(p.shapes, key)
		case idle || !near:
			sh.index = score.NewIndex(p.scorer, sh.Task)
			sh.refusals = nil
		}
	}
	p.sweeps++
	p.crowded = len(p.shapes) + max(forgetAtLeast, len(p.shapes)/8)
}

// Learn sets the prior demand: what a cluster like this has run before. It
// need not be right: it counts for as many arrivals as it has tasks, within
// [Weights.GuessTasks] and [Weights.HistoryTasks]. Without it a general mix is
// assumed.
func (p *Planner) Learn(history []Request) {
	p.taught = true
	p.demand.ForgetPrior(max(p.weights.GuessTasks, min(int64(len(history)), p.weights.HistoryTasks)))
	for i := range history {
		p.demand.Count(&p.shapeOf(&history[i]).Demand, forecast.Prior)
		p.demand.Thin(p.weights.DemandShapes) // each time: a history may have many shapes
	}
	p.relearn()
}

// Arrive tells the planner that a request has arrived. Call it once per
// request, before the first Place.
func (p *Planner) Arrive(r *Request) { p.ArriveTogether(r, 1) }

// ArriveTogether is Arrive for a number of equal requests: prices are computed once for all of them.
func (p *Planner) ArriveTogether(r *Request, number int) {
	before := p.arrivals
	for range number {
		p.demand.Arrive(&p.shapeOf(r).Demand)
		p.demand.Thin(p.weights.DemandShapes)
		p.trend.Arrive(r.GPUs, milliPerGPU(r))
		p.arrivals++
	}
	switch {
	case number <= 0:
	case p.arrivals >= p.nextLearn:
		for p.nextLearn <= p.arrivals {
			p.nextLearn *= 2
		}
		p.review()
	case p.arrivals >= p.nextPrice || p.arrivals/waryEvery != before/waryEvery && p.wariness() > p.caution:
		p.recompute()
	}
}

// Started tells the planner that a task has started, and Ended that one has ended:
// what room is worth depends on whether tasks end. Call them once per task, besides
// [Snapshot.Apply] and [Snapshot.Release]; work that moves does neither.
func (p *Planner) Started() { p.scorer.Turnover.Start() }

// Ended tells the planner that a task has ended; see [Planner.Started].
func (p *Planner) Ended() { p.scorer.Turnover.End() }

// ExpectEnds tells the planner to begin as in a cluster where rate tasks end per task that
// starts, from 0 to 1, and not as in one that only fills up: a service that has just come up
// has seen neither, and real clusters live.
func (p *Planner) ExpectEnds(rate float64) {
	p.scorer.Turnover.Rate = rate
	p.recompute()
}

// Turnover is how many tasks end per task that starts, from 0 to 1.
func (p *Planner) Turnover() float64 { return p.scorer.Turnover.Rate }

// milliPerGPU is about how much of each GPU a request takes.
func milliPerGPU(r *Request) int64 {
	if r.Whole {
		return cluster.GPUMilli
	}
	return r.ShareMilli
}

// review learns the demand again when it has changed.
func (p *Planner) review() {
	if p.demand.Drift()*1000 >= float64(p.weights.DriftMilli) || p.scorer.Turnover.Lives && p.coarse != p.livesCoarsely() {
		p.relearn()
	} else {
		p.recompute()
	}
}

func (p *Planner) relearn() {
	if !p.taught {
		p.assume()
	}
	for _, sh := range p.shapes {
		sh.Size(p.snap)
	}
	p.demand.Learn()
	coarse := p.demand.Coarse()
	if p.scorer.Turnover.Lives {
		p.coarse = p.livesCoarsely()
		coarse = p.coarse
	}
	p.scorer.Learn(p.snap.Supply(), p.demand, coarse)
	p.recompute()
}

// livesCoarsely reports, where tasks end, that hardly any takes little of a GPU. A general mix
// does not say it: without a history it is so until enough tasks have come.
func (p *Planner) livesCoarsely() bool {
	if p.taught {
		return p.demand.Coarse()
	}
	return p.demand.ArrivesCoarse()
}

// recompute works out the prices. Where tasks have begun or ceased to end, all
// estimates are about the wrong things.
func (p *Planner) recompute() {
	if p.scorer.Turnover.Change() {
		p.relearn()
		return
	}
	p.caution = p.wariness()
	p.scorer.Price(p.snap.Supply(), p.demand, p.caution)
	every := p.repriceEvery()
	p.nextPrice, p.stalePrice = p.arrivals+every, p.snap.Each.Log.End()+changesPerArrival*every
}

// repriceEvery is after how many arrivals prices are to be computed again.
func (p *Planner) repriceEvery() int64 {
	const few = 1200
	pools := int64(len(p.snap.Pools))
	switch {
	case pools > few:
		return p.weights.RepriceEvery * pools / few
	case p.scorer.Turnover.Lives:
		return p.weights.LiveRepriceEvery
	}
	return p.weights.RepriceEvery
}

// Place finds the best node for a request now. It does not book anything: pass
// the Placement's usage to [Snapshot.Apply]. When nothing fits the error wraps
// ErrNoRoom, and [Planner.Explain] says why; ErrQuota when a limit forbids it.
func (p *Planner) Place(r *Request) (Placement, error) {
	if !r.Ordered || len(r.Models) < 2 {
		return p.placeAny(r)
	}
	var why error
	for i := range r.Models {
		one := *r
		one.Models = r.Models[i : i+1]
		pl, err := p.placeAny(&one)
		if err == nil {
			return pl, nil
		}
		if why == nil || errors.Is(why, ErrNoRoom) {
			why = err
		}
	}
	return Placement{}, why
}

// placeAny places a request on any of its models.
func (p *Planner) placeAny(r *Request) (Placement, error) {
	if err := r.Validate(); err != nil {
		return Placement{}, err
	}
	p.prepare()
	sh := p.shapeOf(r)
	if p.quotas != nil {
		if err := p.quotas.Limited(p.snap, r.Queue, sh.LeastCharge(p.snap)); err != nil {
			return Placement{}, fmt.Errorf("place %q: %w", r.ID, err)
		}
	}
	pl, err := p.placeShape(r, sh)
	if err != nil {
		return pl, err
	}
	over := p.withinLimits(&pl.Usage)
	if over == nil || r.Most != (Charge{}) {
		return pl, over
	}
	cheaper := *r // another kind of GPU may cost its queue less
	cheaper.Most = p.quotas.Left(p.snap, r.Queue).Part(r.GPUs)
	if pl, err := p.placeShape(&cheaper, p.shapeOf(&cheaper)); err == nil {
		return pl, p.withinLimits(&pl.Usage)
	}
	return pl, over
}

func (p *Planner) placeShape(r *Request, sh *shape) (Placement, error) {
	ix := p.indexOf(sh)
	if len(r.Except) > 0 {
		b, ok := ix.PickExcept(r.Except)
		if !ok {
			return Placement{}, fmt.Errorf("place %q: %w", r.ID, ErrNoRoom)
		}
		return p.placement(r, sh, b), nil
	}
	id, ok := ix.Pick()
	if !ok {
		return Placement{}, fmt.Errorf("place %q: %w", r.ID, ErrNoRoom)
	}
	b := ix.PoolOf(id)
	return Placement{NodeID: b.Node.Spec.ID, Usage: p.usage(r, sh, b), Score: int64(ix.Tree.Scores()[id])}, nil
}

// LeastCharge is the least that a quota would pay for the request on any kind of
// GPU that is known.
func (p *Planner) LeastCharge(r *Request) Charge { return p.shapeOf(r).LeastCharge(p.snap) }

// prepare learns what the cluster has that the futures and prices do not know.
func (p *Planner) prepare() {
	switch {
	case len(p.scorer.Prices.Model) < len(p.snap.Kinds):
		p.relearn()
	case p.snap.Each.Log.End() >= p.stalePrice:
		p.recompute()
	}
}

// placement is the answer that puts a request on a pool that fits it.
func (p *Planner) placement(r *Request, sh *shape, b *cluster.Pool) Placement {
	return Placement{NodeID: b.Node.Spec.ID, Usage: p.usage(r, sh, b), Score: int64(p.scorer.Score(sh.Task, b))}
}

// withinLimits checks the quota for what a placement really takes: on some
// kinds of GPU memory rounds up to more than the least.
func (p *Planner) withinLimits(u *Usage) error {
	if p.quotas == nil || u.Queue == "" {
		return nil
	}
	return p.quotas.Limited(p.snap, u.Queue, p.snap.Charge(u.NodeID, u.Takes))
}

func (p *Planner) usage(r *Request, sh *shape, b *cluster.Pool) Usage {
	u := Usage{
		ID: r.ID, NodeID: b.Node.Spec.ID, Job: r.Job, Namespace: r.Namespace, Queue: r.Queue, Priority: r.Priority, SeatPriority: r.SeatPriority,
		CPUMHz: r.CPUMHz, MemoryMiB: r.MemoryMiB, MinRun: r.MinRun,
	}
	if r.GPUs == 0 {
		return u
	}
	ch := p.scorer.Chosen(sh.Task, b)
	nd := sh.Need(p.snap, b.Kind)
	for _, i := range ch.GPUs {
		t := nd.Take
		t.GPU = b.Positions[i]
		u.Takes = append(u.Takes, t)
	}
	return u
}

// assume sets a general mix as prior demand, for a cluster as it is now.
func (p *Planner) assume() {
	var cpu, memory, gpus int64
	for _, n := range p.snap.Nodes {
		if len(n.Spec.GPUs) > 0 {
			cpu, memory, gpus = cpu+n.Spec.CPUMHz, memory+n.Spec.MemoryMiB, gpus+int64(len(n.Spec.GPUs))
		}
	}
	if gpus == 0 {
		return
	}
	p.demand.ForgetPrior(p.weights.GuessTasks)
	for _, g := range forecast.Guesses(cpu/gpus, memory/gpus) {
		r := Request{GPUs: g.GPUs, CPUMHz: g.CPU, MemoryMiB: g.Memory, Whole: g.Milli == cluster.GPUMilli}
		if !r.Whole {
			r.ShareMilli = g.Milli
		}
		p.demand.Add(&p.shapeOf(&r).Demand, forecast.Prior, g.Tasks)
	}
	p.demand.Thin(p.weights.DemandShapes)
}

// waryEvery is the number of arrivals between two looks whether prices must become more
// careful. That they need not be any more is seen when they are computed next.
const waryEvery = 32

// wariness is how careful prices have to be. Where tasks only come, nothing is known of what
// comes next, and what arrives lately is unlike what arrived in all, as where tasks come in the
// order of their size, they are careful ([forecast.Pricing.Careful]): out of nodes that small tasks have
// broken by then, no room for large ones can be made. It is 0, not at all, 1, careful, or careful and so many
// times as high.
func (p *Planner) wariness() int64 {
	switch {
	case p.taught || p.scorer.Turnover.Lives:
		return 0
	case p.trend.Odd():
		return p.weights.OddPrices
	case p.trend.Unlike() && p.snap.MostlyFree(p.weights.EarlyMilli):
		return 1
	}
	return 0
}

// rankedWork is the ranks of all work, and which nodes had work of another rank before.
type rankedWork struct {
	ranks *quota.Ranks
	log   ranking.Log // of the first pools of nodes
}
