package decide

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// everyNode is up to how many nodes Nomad looks at all of them by itself when
// a group has affinities. In larger clusters the best node might be outside
// the sample, so the candidates are narrowed.
const everyNode = 100

// choosing is the work on one ask.
type choosing struct {
	book  *Book
	key   nomad.JobKey
	ask   *admit.Ask
	queue *config.Queue
	parts []part
	form  unit // where one alloc would go on an empty cluster
	// grows is set where the job asks for more allocs than before.
	grows bool
	// unreserved is set where the reservation that the ask names is over.
	unreserved bool
	ahead      []waiter // what waits, as far as looked up
	looked     bool
	// why is the core's explanation, made before anything of the ask is booked.
	why place.Explanation
}

// native is a group as it came, without a preference: every node is looked at.
func (c *choosing) native() GroupRecord {
	d := admit.Decision{Group: c.ask.Group, Tasks: make([]admit.TaskDecision, len(c.ask.Tasks))}
	for i, t := range c.ask.Tasks {
		d.Tasks[i].Task = t.Task
	}
	d.Explanation = []string{"it came around the service; no preference is set"}
	shown := c.shown(view.Placed, d.Explanation[0])
	return GroupRecord{Key: c.ask.Key(), Ask: c.stored(), Decision: d, Shown: shown}
}

// stored is the ask as it is recorded: what an earlier admission left in the
// job is not part of it.
func (c *choosing) stored() admit.Ask {
	a := *c.ask
	a.Was = nil
	return a
}

// first decides about an ask that is new, or whose allocs are all gone.
func (c *choosing) first() (GroupRecord, error) {
	b := c.book
	n := b.nodes[c.form.node]
	g := GroupRecord{Key: c.ask.Key(), Ask: c.stored(), Cost: c.leastCost()}
	g.Decision = admit.Decision{Group: c.ask.Group}
	if !c.places() {
		if err := c.payable(); err != nil {
			return g, err
		}
		g.Decision.Tasks = tasks(c.ask, c.parts, c.form, n)
		g.Covered = covered(c.parts)
		forget(&g)
		g.Shown = c.shown(view.Placed, "Nomad places it when it starts")
		return g, nil
	}
	if c.ask.Reservation != "" {
		if err := c.claimable(); err != nil {
			return g, err
		}
	}
	defer c.setAside()()
	return c.fill(g, nil, 0)
}

// setAside takes the group's running allocs off the books: a changed request
// replaces all of them, so what they hold is free for it. The result puts them
// back, for as long as they run.
func (c *choosing) setAside() func() {
	var old []*nomad.Alloc
	for _, a := range c.book.allocsOf(c.key) {
		if a.Group == c.ask.Group {
			old = append(old, a)
			c.book.unbook(a.ID)
		}
	}
	return func() {
		for _, a := range old {
			c.book.book(c.book.usageOf(a))
		}
	}
}

// places reports whether Nomad starts allocs on registration, on nodes that
// can be preferred.
func (c *choosing) places() bool {
	return !c.ask.Later && (c.ask.JobType == "service" || c.ask.JobType == "batch")
}

// forget removes the preferred GPU, which belongs to no particular alloc.
func forget(g *GroupRecord) {
	for i := range g.Decision.Tasks {
		for k := range g.Decision.Tasks[i].Devices {
			g.Decision.Tasks[i].Devices[k].Prefer = ""
		}
	}
}

// again decides about an ask that was decided before and may run: the device
// blocks stay as they are, and only new allocs are placed.
func (c *choosing) again(was GroupRecord) (GroupRecord, error) {
	g, b := was, c.book
	g.Ask, c.grows = c.stored(), c.ask.Count > was.Ask.Count
	if !c.places() {
		return g, c.payable()
	}
	if c.ask.Reservation != "" && b.claims[c.ask.Reservation] == nil {
		c.unreserved = true // it was claimed, or is over: the job goes on without it
	}
	given := c.given(&was)
	missing := c.ask.Count - c.book.live(c.key, c.ask.Group)
	if was.Decision.Hold == nil && (missing <= 0 || c.underWay(&was)) {
		for _, u := range was.Flights {
			if missing > 0 {
				c.book.fly(c.key, c.ask.Group, u, false)
				missing--
			}
		}
		return g, nil
	}
	return c.fill(g, given, c.book.live(c.key, c.ask.Group))
}

// underWay reports whether Nomad is about to place what was decided before.
func (c *choosing) underWay(was *GroupRecord) bool {
	return len(was.Flights) > 0 && was.Ask.Count == c.ask.Count && c.book.blocked[c.key] == nil
}

// keepTo leaves only nodes that can serve device blocks which are given.
func (c *choosing) keepTo(given []admit.TaskDecision) {
	w := c.book.writtenOf(c.ask, given)
	var able []string
	for _, id := range c.book.nodeIDs() {
		if c.book.snap.Admits(id, &w.node) && c.book.snap.Serves(id, &w.alloc, place.Everything) {
			able = append(able, id)
		}
	}
	if len(able) == len(c.book.nodes) {
		return
	}
	if len(able) == 0 {
		able = []string{noNode}
	}
	for i := range c.parts {
		c.parts[i].req.Nodes = able
	}
}

// fill places the allocs that do not run yet, beside those that do. Given are
// the device blocks if they are not to change.
func (c *choosing) fill(g GroupRecord, given []admit.TaskDecision, running int) (GroupRecord, error) {
	b := c.book
	missing := max(0, c.ask.Count-running)
	g.Flights, g.Decision.Hold = nil, nil
	defer c.openReservation()()
	if hold, err := c.quota(g.Cost, running, missing); err != nil {
		return g, err
	} else if hold != nil {
		return c.held(g, given, hold), nil
	}
	var err error
	if c.why, err = b.plan.Explain(&c.parts[0].req, b.now()); err != nil {
		return g, err
	}
	units, kept, err := c.units(missing, running)
	var over *place.QuotaError
	switch {
	case errors.As(err, &over): // what the chosen GPUs cost is more than the least
		b.dropGroupFlights(c.key, c.ask.Group)
		hold, err := c.overdrawn(over.Why, running, missing)
		if err != nil {
			return g, err
		}
		return c.held(g, given, hold), nil
	case err != nil:
		return g, err
	}
	if running == 0 && len(units) < c.ask.Together() {
		b.dropGroupFlights(c.key, c.ask.Group)
		if kept == nil {
			kept = c.tooFew(len(units))
		}
		return c.held(g, given, kept), nil
	}
	if kept != nil && running == 0 && len(units) == 0 {
		return c.held(g, given, kept), nil
	}
	g = c.settle(g, given, units)
	if missing > len(units) {
		hold := b.reservedAway(&g)
		if hold != nil && running == 0 {
			b.dropGroupFlights(c.key, c.ask.Group)
			return c.held(g, given, hold), nil
		}
		if hold != nil && c.grows { // Nomad would start the new allocs in reserved room
			return g, &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("group %q: no room for %d of %d allocs: %s",
				c.ask.Group, missing-len(units), c.ask.Count, hold.Sentence)}
		}
		c.wait(&g, missing-len(units))
	}
	return g, nil
}

// payable refuses work that Nomad starts by itself, now or later, where its queue
// could not pay for it: a system job for every node that it starts on, a periodic
// or parameterized one for one child.
func (c *choosing) payable() error {
	if c.queue == nil {
		return nil
	}
	b, cost := c.book, c.leastCost()
	if c.ask.Later {
		if why := b.neverInQuota(c.queue.Name, cost); why != "" {
			return forbidden("group %q: %s", c.ask.Group, why)
		}
		return nil
	}
	w, missing := b.writtenOf(c.ask, tasks(c.ask, c.parts, c.form, b.nodes[c.form.node])), -b.live(c.key, c.ask.Group)
	for _, id := range b.nodeIDs() {
		if !b.nodes[id].Plan.Ineligible && b.snap.Admits(id, &w.node) && b.snap.Serves(id, &w.alloc, place.Everything) {
			missing += max(1, c.ask.Count)
		}
	}
	if why := b.overQuota(c.queue.Name, cost.Times(int64(max(0, missing)))); missing > 0 && why != "" {
		return forbidden("group %q of a %s job starts on %d nodes: %s", c.ask.Group, c.ask.JobType, missing, why)
	}
	return nil
}

// leastCost is the least that one alloc costs its queue, on whatever GPU. On
// which it lands, and what that costs, is seen when it is placed.
func (c *choosing) leastCost() place.Charge {
	var sum place.Charge
	for i := range c.parts {
		sum = sum.Plus(c.book.plan.LeastCharge(&c.parts[i].req))
	}
	return sum
}

// quota says whether the group must wait for its queue.
func (c *choosing) quota(cost place.Charge, running, missing int) (*admit.Hold, error) {
	if c.queue == nil || missing == 0 {
		return nil, nil
	}
	all := cost.Times(int64(missing))
	if why := c.book.neverInQuota(c.queue.Name, all); why != "" {
		return nil, forbidden("group %q: %s", c.ask.Group, why)
	}
	if why := c.book.overQuota(c.queue.Name, all); why != "" {
		return c.overdrawn(why, running, missing)
	}
	if owed := c.owed(); owed != (place.Charge{}) {
		if why := c.book.overQuota(c.queue.Name, all.Plus(owed)); why != "" {
			return c.overdrawn(fmt.Sprintf("%s of it are for work that was admitted and waits for room", owed), running, missing)
		}
	}
	if first := c.firstInQueue(all); first != nil && running == 0 {
		return &admit.Hold{Kind: view.WaitsForQuota, Sentence: fmt.Sprintf("%s with priority %d waits for what this would take of the quota", c.other(first.key), first.turn.Priority)}, nil
	}
	return nil, nil
}

// owed is what work of the ask's queue costs that was admitted and waits for room:
// Nomad may start it at any time, and nobody asks then.
func (c *choosing) owed() place.Charge {
	b, sum := c.book, place.Charge{}
	for key, blocked := range b.blocked {
		r := b.records[key]
		if r == nil || key == c.key {
			continue
		}
		for name, missing := range blocked.Missing {
			g, known := r.Groups[name]
			if !known || g.Decision.Hold != nil || !b.sharesLimit(b.turnOf(&g.Ask, blocked.Since).Queue, c.queue.Name) {
				continue
			}
			for _, f := range b.flights { // what is booked counts already
				if f.key == key && f.group == name {
					missing--
				}
			}
			sum = sum.Plus(g.Cost.Times(int64(max(0, missing))))
		}
	}
	return sum
}

// firstInQueue is a group that goes before the ask and waits for the same quota,
// of which too little would be left for it; nil for none. Without it small jobs
// would take what comes free, one after the other, and a larger one never runs.
func (c *choosing) firstInQueue(own place.Charge) *waiter {
	b, turn := c.book, c.turn()
	for key, blocked := range b.blocked {
		r := b.records[key]
		if r == nil || key == c.key {
			continue
		}
		for name, missing := range blocked.Missing {
			g, known := r.Groups[name]
			if !known || missing == 0 || g.Decision.Hold == nil || g.Decision.Hold.Kind != view.WaitsForQuota {
				continue
			}
			w := waiter{key: key, group: name, turn: b.turnOf(&g.Ask, blocked.Since)}
			patient := w.turn.Priority == turn.Priority && b.now().Sub(w.turn.Submit) >= patience && b.plan.Compare(&w.turn, &turn) < 0
			if w.turn.Priority <= turn.Priority && !patient || !b.sharesLimit(w.turn.Queue, c.queue.Name) {
				continue
			}
			all := g.Cost.Times(int64(missing))
			if b.neverInQuota(w.turn.Queue, all) == "" && b.overQuota(w.turn.Queue, all.Plus(own)) != "" {
				return &w
			}
		}
	}
	return nil
}

// sharesLimit reports whether what one queue holds counts for a limit of the other.
func (b *Book) sharesLimit(x, y string) bool {
	for q := b.config.Queue(x); q != nil; q = b.config.Queue(q.Parent) {
		milli, memory := q.Limit()
		if (milli > 0 || memory > 0) && b.isWithin(y, q.Name) {
			return true
		}
	}
	return false
}

// overdrawn holds a group that its queue cannot pay for now. A group that runs
// already is not held, since a hold would cover what runs; it is refused.
func (c *choosing) overdrawn(why string, running, missing int) (*admit.Hold, error) {
	if running > 0 {
		return nil, forbidden("group %q: %d more allocs are over the quota: %s", c.ask.Group, missing, why)
	}
	return &admit.Hold{Kind: view.WaitsForQuota, Sentence: why}, nil
}

// units places allocs one after the other and books each as a flight. It stops
// where there is no room for the next, or, for a group of which nothing runs, only
// such as is kept for others.
func (c *choosing) units(missing, running int) ([]unit, *admit.Hold, error) {
	b := c.book
	var units []unit
	for i := range missing {
		u, kept, err := c.unit(i, running)
		if errors.Is(err, place.ErrNoRoom) {
			return units, kept, nil
		}
		if err != nil {
			return nil, nil, err
		}
		units = append(units, u)
		b.fly(c.key, c.ask.Group, u.usage, false)
	}
	return units, nil, nil
}

// unit places the i-th alloc; the first one takes the reservation if there is
// one.
func (c *choosing) unit(i, running int) (unit, *admit.Hold, error) {
	if i == 0 && c.ask.Reservation != "" && !c.unreserved {
		u, err := c.claim()
		return u, nil, err
	}
	if running > 0 {
		u, err := c.book.board(false).place(c.parts)
		return u, nil, err
	}
	return c.unkept(c.parts)
}

// settle writes down where the allocs go.
func (c *choosing) settle(g GroupRecord, given []admit.TaskDecision, units []unit) GroupRecord {
	b := c.book
	model := c.form
	if len(units) > 0 {
		model = units[0]
	}
	if given != nil {
		g.Decision.Tasks = given
	} else {
		g.Decision.Tasks = tasks(c.ask, c.parts, model, b.nodes[model.node])
		g.Covered = covered(c.parts)
		if len(units) != 1 || c.ask.Count != 1 {
			forget(&g) // one preference cannot be right for several allocs
		}
	}
	g.Decision.Preferred = nil
	for _, u := range units {
		if !slices.Contains(g.Decision.Preferred, u.node) {
			g.Decision.Preferred = append(g.Decision.Preferred, u.node)
		}
		g.Flights = append(g.Flights, u.usage)
	}
	g.Decision.Candidates = b.candidates(&g)
	g.Shown = c.shown(view.Placed, "")
	for _, u := range units {
		g.Shown.Choices = append(g.Shown.Choices, c.choice(u))
	}
	c.explain(&g)
	if nomadChooses(c.ask) && b.beyond(model) {
		g.Decision.Explanation = append(g.Decision.Explanation, unpinned)
	}
	return g
}

// unpinned warns of what Nomad, which counts slices and knows of no compute,
// may do to several allocs of a group whose device blocks are older than its
// count, and stay as they are since new ones would replace what runs.
const unpinned = "with a count above 1 the GPU of each alloc is Nomad's choice, and the device blocks are from when " +
	"the count was 1: where several share one, compute beyond the memory's proportion may be refused on the node; " +
	"stop the job and submit it again to have it hold the slices for its compute"

// beyond reports whether an alloc is promised more compute than its slices
// hold together.
func (b *Book) beyond(u unit) bool {
	n := b.nodes[u.node]
	return slices.ContainsFunc(u.usage.Takes, func(t place.Take) bool {
		g := &n.Plan.GPUs[t.GPU]
		return g.Mode == gpu.ModeSlice && t.Slices > 0 && g.Slices/t.Slices*t.Milli > gpu.MilliPerGPU
	})
}

// held is the answer to a group that must wait.
func (c *choosing) held(g GroupRecord, given []admit.TaskDecision, hold *admit.Hold) GroupRecord {
	return c.markHeld(c.settle(g, given, nil), hold)
}

func (c *choosing) markHeld(g GroupRecord, hold *admit.Hold) GroupRecord {
	g.Decision.Hold = hold
	g.Shown.Choices = nil
	g.Shown.Outcome, g.Shown.Summary = view.Held, "waits for "+hold.Kind+": "+hold.Sentence
	g.Decision.Explanation = []string{g.Shown.Summary}
	return g
}

// wait explains that some allocs find no room yet. Nomad queues them and
// starts them when room returns, with the service or without it.
func (c *choosing) wait(g *GroupRecord, missing int) {
	text := fmt.Sprintf("%d of %d allocs wait for room", missing, c.ask.Count)
	if len(g.Flights) == 0 {
		g.Shown.Outcome = view.Held
	}
	g.Shown.Summary = text
	g.Decision.Explanation = append([]string{text}, g.Decision.Explanation...)
}

// other names another job to the owner of this one, who may not see what runs
// in other namespaces.
func (c *choosing) other(key nomad.JobKey) string {
	if key.Namespace == c.key.Namespace {
		return "job " + key.ID
	}
	return "a job of another namespace"
}
