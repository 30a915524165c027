package decide

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// everyNode is up to how many nodes Nomad looks at all of them by itself when
// a group has affinities. In larger clusters the best node might be outside
// the sample, so the candidates are narrowed.
const everyNode = 100

// groupPlacer is the work on one ask.
type groupPlacer struct {
	tx    *state.Tx
	key   nomad.JobKey
	ask   *admit.Ask
	queue *config.Queue
	parts []blocks.Part
	form  blocks.Placed // where one alloc would go on an idle cluster
	// grows is set where the job asks for more allocs than before.
	grows bool
	// unreserved is set where the reservation that the ask names is over.
	unreserved bool
	window     *Window // see turns
	// why is the core's explanation, made before anything of the ask is booked.
	why place.Explanation
	// beside is how many allocs Nomad starts beside what runs, before it replaces any of
	// that; 0: it replaces at once.
	beside int
	// before is what groups of the same job cost that were decided about before this one, and that
	// Nomad starts with it.
	before atOnce
	// trial is set where only the hold of the answer is of interest.
	trial bool
}

// unmanaged is a group as it came, without a preference: every node is looked at.
func (p *groupPlacer) unmanaged() record.Group {
	d := admit.Decision{Group: p.ask.Group, Tasks: make([]admit.TaskDecision, len(p.ask.Tasks))}
	for i, t := range p.ask.Tasks {
		d.Tasks[i].Task = t.Task
	}
	d.Explanation = []string{"it came around the service; no preference is set"}
	shown := p.shown(view.Registered, d.Explanation[0])
	return record.Group{Key: p.ask.Key(), Ask: p.stored(), Decision: d, Shown: shown}
}

// stored is the ask as it is recorded: what an earlier admission left in the
// job is not part of it.
func (p *groupPlacer) stored() admit.Ask {
	a := *p.ask
	a.Was = nil
	return a
}

// decideNew decides about an ask that is new, or whose allocs are all gone.
func (p *groupPlacer) decideNew() (record.Group, error) {
	tx := p.tx
	g := record.Group{Key: p.ask.Key(), Ask: p.stored(), Cost: p.leastCost()}
	g.Decision = admit.Decision{Group: p.ask.Group}
	if !p.places() {
		hold, err := p.payable()
		if err != nil {
			return g, err
		}
		g.Decision.Tasks, g.Decision.Bounds = blocks.Tasks(tx, p.ask, p.parts, p.form), blocks.Bounds(p.queue)
		g.Covered = covered(p.parts)
		unpin(&g)
		g.Shown = p.shown(view.Registered, p.placedBy())
		if hold != nil {
			g = p.markHeld(g, hold)
		}
		return g, nil
	}
	if p.ask.Reservation != "" {
		if err := p.claimable(); err != nil {
			return g, err
		}
	}
	g.Replaces = tx.Live(p.key, p.ask.Group) > 0
	return p.replace(g, nil)
}

// setAside takes the group's running allocs off the books: a changed request
// replaces all of them, so what they hold is free for it. What stops already is
// not replaced: it holds its GPUs, and its queue pays for it, until it has ended.
// The result puts them back, for as long as they run.
func (p *groupPlacer) setAside() func() {
	return p.tx.Without(func(yield func(*nomad.Alloc) bool) {
		for _, a := range p.tx.AllocsOf(p.key) {
			if a.Group == p.ask.Group && !a.Stopping && !yield(a) {
				return
			}
		}
	})
}

// places reports whether Nomad starts allocs on registration, on nodes that
// can be preferred.
func (p *groupPlacer) places() bool {
	return !p.ask.Later && (p.ask.JobType == "service" || p.ask.JobType == "batch")
}

// placedBy says when Nomad places what it places alone.
func (p *groupPlacer) placedBy() string {
	if p.ask.Later {
		return "Nomad places it when it starts"
	}
	return "Nomad places it on every node that it may run on"
}

// outcome is what comes of an answer, beside so many allocs that go on running.
func (p *groupPlacer) outcome(g *record.Group, running int) string {
	switch {
	case g.Decision.Hold != nil:
		return view.Held
	case !p.places():
		return view.Registered
	case p.ask.Count-running > p.tx.Assumed(p.key, p.ask.Group):
		return view.Waits
	}
	return view.Placed
}

// unpin removes the preferred GPU, which belongs to no particular alloc.
func unpin(g *record.Group) {
	for i := range g.Decision.Tasks {
		for k := range g.Decision.Tasks[i].Devices {
			g.Decision.Tasks[i].Devices[k].Prefer = ""
		}
	}
}

// redecide decides about an ask that was decided before and may run: the device
// blocks stay as they are, and only new allocs are placed.
func (p *groupPlacer) redecide(was record.Group) (record.Group, error) {
	g := was
	g.Ask, p.grows = p.stored(), p.ask.Count > was.Ask.Count
	g.Decision.Bounds = blocks.Bounds(p.queue)
	if len(g.Only) > 0 {
		return g, nil // it starts nothing more until its queue can pay
	}
	if !p.places() {
		_, err := p.payable() // of a periodic job all is decided anew
		return g, err
	}
	if p.ask.Reservation != "" && p.tx.Reservation(p.ask.Reservation) == nil {
		p.unreserved = true // it was claimed, or is over: the job goes on without it
	}
	g.Attempts.Nodes, g.Widened = nil, 0 // it may be another job, as far as Nomad looks at nodes
	if g.Decision.Hold != nil {
		g.Attempts = record.Attempts{} // its owner wants it to be tried
	}
	given := p.given(&was)
	if hold := p.besideEnding(&was); hold != nil {
		g.Replaces = true
		return p.held(g, given, hold), nil
	}
	missing := p.ask.Count - p.tx.Live(p.key, p.ask.Group)
	if was.Decision.Hold == nil && (missing <= 0 || p.underWay(&was)) {
		p.tx.AssumeRest(p.key, p.ask.Group, was.Assumed, missing)
		return g, nil
	}
	return p.refill(g, given)
}

// underWay reports whether Nomad is about to place what was decided before. It is not
// where the group was scaled down since.
func (p *groupPlacer) underWay(was *record.Group) bool {
	if j := p.tx.Job(p.key); j != nil {
		if g := j.Group(p.ask.Group); g != nil && g.Count < p.ask.Count {
			return false
		}
	}
	return len(was.Assumed) > 0 && was.Ask.Count == p.ask.Count && p.tx.Blocked(p.key) == nil
}

// keepTo leaves only nodes that can serve device blocks which are given.
func (p *groupPlacer) keepTo(given []admit.TaskDecision) {
	room := p.tx.RoomFor(blocks.Need(p.tx, p.ask, given))
	if room.Count(state.FitsNow)+room.Count(state.FitsLater)+room.Count(state.FitsWhenBack) == len(p.tx.NodeIDs()) {
		return
	}
	var able []string
	for _, id := range p.tx.NodeIDs() {
		if room.On(id) != state.FitsNever {
			able = append(able, id)
		}
	}
	if len(able) == 0 {
		able = []string{blocks.NoNode}
	}
	for i := range p.parts {
		p.parts[i] = p.parts[i].On(able)
	}
}

// fill places the allocs that do not run yet, beside those that do. Given are
// the device blocks if they are not to change.
func (p *groupPlacer) fill(g record.Group, given []admit.TaskDecision, running int) (record.Group, error) {
	tx := p.tx
	missing := max(0, p.ask.Count-running)
	if p.beside > 0 {
		missing, running = p.beside, 0
	}
	g.Assumed, g.Decision.Hold = nil, nil
	defer p.openReservation()()
	if hold := p.resting(&g); hold != nil && running == 0 {
		return p.held(g, given, hold), nil
	}
	if running == 0 && missing > 0 && p.tx.Overlaps(p.key) {
		return p.held(g, given, &admit.Hold{Kind: view.WaitsForQuota, Sentence: "another child of the periodic job runs, which prohibits overlap"}), nil
	}
	if hold, err := p.quota(g.Cost, running, missing); err != nil {
		return g, err
	} else if hold != nil {
		return p.held(g, given, hold), nil
	}
	if err := p.lookAround(); err != nil {
		return g, err
	}
	units, kept, err := p.placeAll(missing, running)
	var over *place.QuotaError
	switch {
	case errors.As(err, &over): // what the chosen GPUs cost is more than the least
		tx.ForgetGroup(p.key, p.ask.Group)
		hold, err := p.overdrawn(over.Why, running, missing)
		if err != nil {
			return g, err
		}
		return p.held(g, given, hold), nil
	case err != nil:
		return g, err
	}
	if running == 0 && len(units) < min(missing, p.ask.Together()) {
		tx.ForgetGroup(p.key, p.ask.Group)
		if kept == nil {
			kept = p.tooFew(len(units))
		}
		return p.held(g, given, kept), nil
	}
	if kept != nil && running == 0 && len(units) == 0 {
		return p.held(g, given, kept), nil
	}
	g = p.settle(g, given, units)
	if missing > len(units) {
		return p.short(g, given, missing, len(units), running)
	}
	return g, nil
}

// short decides about a group for which there is room in part: the rest of it waits for
// room, or all of it is held where Nomad would start it in room that is others'.
func (p *groupPlacer) short(g record.Group, given []admit.TaskDecision, missing, placed, running int) (record.Group, error) {
	hold := reservedAway(p.tx, &g)
	if hold == nil && running == 0 {
		hold = p.promisedAway(&g)
	}
	if hold == nil && running == 0 && placed == 0 {
		if hold = p.afterTurn(&g); hold == nil {
			hold = p.leavesNextPlace()
		}
	}
	if hold != nil && running == 0 {
		p.tx.ForgetGroup(p.key, p.ask.Group)
		return p.held(g, given, hold), nil
	}
	if hold != nil && p.grows { // Nomad would start the new allocs in reserved room
		return g, &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("group %q: no room for %d of %d allocs: %s",
			p.ask.Group, missing-placed, p.ask.Count, hold.Sentence)}
	}
	p.wait(&g, missing-placed)
	return g, nil
}

// lookAround has the core explain where the group's first part could go.
func (p *groupPlacer) lookAround() (err error) {
	if !p.trial {
		p.why, err = p.tx.Planner().Explain(&p.parts[0].Req, p.tx.Now())
	}
	return err
}

// placeAll places allocs one after the other and books each as assumed. It stops
// where there is no room for the next, or, for a group of which nothing runs, only
// such as is kept for others.
func (p *groupPlacer) placeAll(missing, running int) ([]blocks.Placed, *admit.Hold, error) {
	tx := p.tx
	var units []blocks.Placed
	for i := range missing {
		p.spread()
		u, kept, err := p.placeOne(i, running)
		if errors.Is(err, place.ErrNoRoom) {
			return units, kept, nil
		}
		if err != nil {
			return nil, nil, err
		}
		units = append(units, u)
		tx.Assume(p.key, p.ask.Group, u.Usage, false)
	}
	return units, nil, nil
}

// placeOne places the i-th alloc; the first one takes the reservation if there is
// one.
func (p *groupPlacer) placeOne(i, running int) (blocks.Placed, *admit.Hold, error) {
	if i == 0 && p.ask.Reservation != "" && !p.unreserved {
		u, err := p.claim()
		return u, nil, err
	}
	if running > 0 {
		u, err := blocks.Cluster(p.tx).Place(p.parts)
		return u, nil, err
	}
	return p.unkept(p.parts)
}

// settle writes down where the allocs go.
func (p *groupPlacer) settle(g record.Group, given []admit.TaskDecision, units []blocks.Placed) record.Group {
	tx := p.tx
	model := p.form
	if len(units) > 0 {
		model = units[0]
	}
	if given != nil {
		g.Decision.Tasks = given
	} else {
		g.Decision.Tasks = blocks.Tasks(tx, p.ask, p.parts, model)
		blocks.KeepClose(tx, g.Decision.Tasks, p.ask, p.parts, units)
		g.Covered = covered(p.parts)
		if len(units) != 1 || p.ask.Count != 1 {
			unpin(&g) // one preference cannot be right for several allocs
		}
	}
	g.Decision.Preferred = nil
	for _, u := range units {
		if !slices.Contains(g.Decision.Preferred, u.Node) {
			g.Decision.Preferred = append(g.Decision.Preferred, u.Node)
		}
		g.Assumed = append(g.Assumed, u.Usage)
	}
	if p.trial {
		return g
	}
	g.Decision.Candidates, g.Decision.Bounds = candidates(tx, &g), blocks.Bounds(p.queue)
	g.Shown = p.shown(view.Placed, "")
	for _, u := range units {
		g.Shown.Choices = append(g.Shown.Choices, p.choice(u))
	}
	p.explain(&g)
	g.Decision.Explanation = append(g.Decision.Explanation, seatTexts(tx, units)...)
	if text := p.behindFirst(units); text != "" {
		g.Shown.Summary += "; " + text
		g.Decision.Explanation[0] = g.Shown.Summary
	}
	if blocks.NomadChooses(p.ask) && beyond(tx, model) {
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
func beyond(tx *state.Tx, u blocks.Placed) bool {
	n := tx.Node(u.Node)
	return slices.ContainsFunc(u.Usage.Takes, func(t place.Take) bool {
		g := &n.Plan.GPUs[t.GPU]
		return g.Mode == gpu.ModeSlice && t.Slices > 0 && g.Slices/t.Slices*t.Milli > gpu.MilliPerGPU
	})
}

// held is the answer to a group that must wait.
func (p *groupPlacer) held(g record.Group, given []admit.TaskDecision, hold *admit.Hold) record.Group {
	return p.markHeld(p.settle(g, given, nil), hold)
}

func (p *groupPlacer) markHeld(g record.Group, hold *admit.Hold) record.Group {
	g.Decision.Hold, g.Decision.Outcome = hold, view.Held
	g.Shown.Choices = nil
	g.Shown.Outcome, g.Shown.Summary = view.Held, "waits for "+hold.Kind+": "+hold.Sentence
	g.Decision.Explanation = []string{g.Shown.Summary}
	return g
}

// wait explains that some allocs find no room yet. Nomad queues them and
// starts them when room returns, with the service or without it.
func (p *groupPlacer) wait(g *record.Group, missing int) {
	text := fmt.Sprintf("%d of %d allocs wait for room", missing, p.ask.Count)
	g.Shown.Outcome, g.Shown.Summary = view.Waits, text
	g.Decision.Explanation = append([]string{text}, g.Decision.Explanation...)
}

// other names another job to the owner of this one, who may not see what runs
// in other namespaces.
func (p *groupPlacer) other(key nomad.JobKey) string {
	if key.Namespace == p.key.Namespace {
		return "job " + key.ID
	}
	return "a job of another namespace"
}
