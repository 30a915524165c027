// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// decider decides about one ask: it takes it through the steps of the package, in their order.
type decider struct {
	groupAsk                      // narrowed to the nodes that it may go to
	form     blocks.Placed        // where one alloc would go on an idle cluster
	given    []admit.TaskDecision // the device blocks if they are not to change
	// made is the capacity being freed for this held group, which is kept for no other. The group starts
	// once all of it is there; until then it waits as before.
	made   []place.Usage
	waited *admit.Hold
	// grows is set where the job asks for more allocs than before.
	grows bool
	// trial is set where only the hold of the answer is of interest.
	trial  bool
	window *Window // see turns
	// why is the core's explanation, made before anything of the ask is booked.
	why place.Explanation
}

// decideNew decides about an ask that is new, or whose allocs are all gone. Before are the groups
// of its job that were decided about already.
func (d *decider) decideNew(before atOnce) (record.Group, error) {
	g := record.Group{Key: d.ask.Key(), Ask: stored(d.ask), Cost: leastCost(d.tx, d.parts)}
	g.Decision = admit.Decision{Group: d.ask.Group}
	if !places(d.ask) {
		return d.leaveToNomad(g, before)
	}
	if d.ask.Reservation != "" {
		if err := claimable(d.tx, d.key, d.ask.Reservation); err != nil {
			return g, err
		}
	}
	g.Replaces = d.tx.Cluster.Live(d.key, d.ask.Group) > 0
	return d.replace(g)
}

// leaveToNomad decides about a group whose allocs Nomad places alone: which device blocks it
// takes, and whether its queue can pay.
func (d *decider) leaveToNomad(g record.Group, before atOnce) (record.Group, error) {
	if err := payable(d.groupAsk, d.form, before); err != nil {
		return g, err
	}
	g.Decision.Tasks, g.Decision.Bounds = blocks.Tasks(d.tx, d.ask, d.parts, d.form), blocks.Bounds(d.queue)
	g.Covered = covered(d.parts)
	unpin(&g)
	summary := "Nomad places it on every node that it may run on"
	if d.ask.Later {
		summary = "each child waits in its turn when it is made"
	}
	g.Shown = d.shown(view.Registered, summary)
	return g, nil
}

// redecide decides about an ask that was decided before and may run: the device
// blocks stay as they are, and only new allocs are placed.
func (d *decider) redecide(was record.Group, before atOnce) (record.Group, error) {
	g := was
	g.Ask, d.grows = stored(d.ask), d.ask.Count > was.Ask.Count
	g.Decision.Bounds = blocks.Bounds(d.queue)
	if len(g.Only) > 0 {
		return g, nil // it starts nothing more until its queue can pay
	}
	if !places(d.ask) {
		return g, payable(d.groupAsk, d.form, before)
	}
	g.Attempts.Nodes = nil // it may be another job, as far as Nomad looks at nodes
	if g.Decision.Hold != nil {
		g.Attempts = record.Attempts{} // its owner wants it to be tried
	}
	d.groupAsk, d.given = d.keeping(&was)
	if hold := besideEnding(d.groupAsk, &was); hold != nil {
		g.Replaces = true
		return d.held(g, hold), nil
	}
	missing := d.ask.Count - d.tx.Cluster.Live(d.key, d.ask.Group)
	if was.Decision.Hold == nil && (missing <= 0 || underWay(d.tx, d.key, d.ask, &was)) {
		d.tx.AssumeRest(d.key, d.ask.Group, was.Assumed, missing)
		if g.Decision.Slots > 0 {
			narrow(d.tx, &g)
		}
		return g, nil
	}
	return d.refill(g)
}

// underWay reports whether Nomad is about to place the earlier decision's allocs. It
// is not where the group was scaled down since.
func underWay(tx *state.Tx, key nomad.JobKey, a *admit.Ask, was *record.Group) bool {
	if j := tx.Cluster.Job(key); j != nil {
		if g := j.Group(a.Group); g != nil && g.Count < a.Count {
			return false
		}
	}
	return len(was.Assumed) > 0 && was.Ask.Count == a.Count && tx.Cluster.Blocked(key) == nil
}

// refill places the missing allocs of a group. It replaces one that was held while
// something of it ran.
func (d *decider) refill(was record.Group) (record.Group, error) {
	running := d.tx.Cluster.Live(d.key, d.ask.Group)
	if was.Decision.Hold != nil && running > 0 && (was.Replaces || besideRunning(d.tx, d.key, d.ask) > 0) {
		return d.replace(was)
	}
	return d.fill(was, start{allocs: max(0, d.ask.Count-running), running: running})
}

// replace places all of a group, in place of its running allocs.
func (d *decider) replace(g record.Group) (record.Group, error) {
	if n := besideRunning(d.tx, d.key, d.ask); n > 0 {
		return d.fill(g, start{allocs: n, beside: runningCharge(d.tx, d.key, d.ask.Group)})
	}
	defer setAside(d.tx, d.key, d.ask.Group)()
	return d.fill(g, start{allocs: max(0, d.ask.Count)})
}

// fill decides about the allocs of a group that Nomad is to start: whether it may start any,
// where they go, and what to do where there is too little room.
func (d *decider) fill(g record.Group, s start) (record.Group, error) {
	g.Assumed, g.Decision.Hold = nil, nil
	defer openReservation(d.tx, d.key, d.ask.Reservation)()
	hold, err := mustWait(d.groupAsk, &g, s)
	switch {
	case err != nil:
		return g, err
	case hold != nil:
		return d.held(g, hold), nil
	}
	if !d.trial {
		if d.why, err = d.tx.Planner().Explain(&d.parts[0].Req, d.tx.Now()); err != nil {
			return g, err
		}
	}
	units, hold, err := d.placeAll(s)
	var over *place.QuotaError
	switch {
	case errors.As(err, &over): // what the chosen GPUs cost is more than the least
		d.tx.Forget(d.key, d.ask.Group)
		if hold, err = overdrawn(d.ask, s, over.Why); err != nil {
			return g, err
		}
		return d.held(g, hold), nil
	case err != nil:
		return g, err
	case s.running == 0 && len(units) < min(s.allocs, max(d.ask.Together(), len(d.made))):
		d.tx.Forget(d.key, d.ask.Group)
		return d.held(g, cmp.Or(hold, d.waited, tooFew(d.ask, len(units)))), nil
	case s.running == 0 && len(units) == 0 && hold != nil:
		return d.held(g, hold), nil
	}
	g = d.settle(g, units)
	if len(units) < s.allocs {
		return d.short(g, s, len(units))
	}
	if d.ask.Child && len(units) > 0 {
		if hold := d.astray(&g); hold != nil {
			d.tx.Forget(d.key, d.ask.Group)
			return d.held(g, hold), nil
		}
	}
	return g, nil
}

// mustWait is the hold of a group that may not start now, whatever room there is; nil where it may.
func mustWait(a groupAsk, g *record.Group, s start) (*admit.Hold, error) {
	switch {
	case s.running == 0 && Rests(g, a.tx.Now()):
		return restHold(&g.Attempts), nil
	case a.queue == nil || s.allocs == 0:
		return nil, nil
	}
	return quotaHold(a, g.Cost.Times(int64(s.allocs)), s)
}

// placeAll places allocs one after the other and books each as assumed. It stops
// where there is no room for the next, or, for a group that runs nothing, only room that
// is kept for others: then it returns for whom. The first takes the reservation if there
// is one.
func (d *decider) placeAll(s start) (units []blocks.Placed, kept *admit.Hold, err error) {
	made := d.made
	for i := range s.allocs {
		a := without(d.groupAsk, hostsOf(d.tx, d.key, d.ask))
		var u blocks.Placed
		switch {
		case i == 0 && d.tx.Capacity.Reservation(d.ask.Reservation) != nil: // else it was claimed, or is over
			u, err = claim(a)
		default:
			if u, made, err = placeIn(a, made); u.Node == "" {
				u, kept, err = d.placeUnkept(a)
			}
		}
		if errors.Is(err, place.ErrNoRoom) {
			return units, kept, nil
		}
		if err != nil {
			return nil, nil, err
		}
		units = append(units, u)
		d.tx.Assume(d.key, d.ask.Group, u.Usage, false)
	}
	return units, nil, nil
}

// placeIn places one alloc in the first of some rooms that was made for it and is there, and returns
// those that are left.
func placeIn(a groupAsk, made []place.Usage) (u blocks.Placed, left []place.Usage, err error) {
	for i := range made {
		if !isFree(a.tx, &made[i]) {
			continue
		}
		node := made[i].NodeID
		there := a.on(func(all []string) []string {
			if len(all) > 0 && !slices.Contains(all, node) {
				return []string{blocks.NoNode}
			}
			return []string{node}
		})
		if u, err = blocks.Cluster(a.tx).Place(there.parts); err == nil {
			return u, slices.Delete(slices.Clone(made), i, i+1), nil
		}
	}
	return blocks.Placed{}, made, err
}

// isFree reports whether all that work would take of its node's GPUs is free.
func isFree(tx *state.Tx, u *place.Usage) bool {
	free, known := tx.Planner().Snapshot().Free(u.NodeID)
	return known && !slices.ContainsFunc(u.Takes, func(t place.Take) bool {
		if t.GPU >= len(free.GPUs) {
			return true
		}
		g := &free.GPUs[t.GPU]
		return t.Milli > g.Milli || t.Slices > g.Slices || t.Replicas > g.Replicas
	})
}

// placeUnkept places one alloc where it takes no room that is kept for others: for a group whose
// turn it is, or for large tasks that come often. Where there is room that is kept only, it
// returns for whom.
func (d *decider) placeUnkept(a groupAsk) (blocks.Placed, *admit.Hold, error) {
	work := a.work()
	u, held, err := turns.Start(d.turns(), work, func(except map[string]bool) (blocks.Placed, *place.Usage, error) {
		u, err := blocks.Cluster(a.tx).Place(without(a, except).parts)
		return u, &u.Usage, err
	})
	if held.Headroom.GPUs > 0 {
		return u, waitsForHeadroom(held.Headroom, work.Turn.Since.Add(a.tx.Config().Placement.Weights.HeadroomWait)), err
	}
	return u, holdOf(held.For, a.key), err
}

// turns are looked up once per decision.
func (d *decider) turns() *Window {
	if d.window == nil {
		d.window = NewWindow(d.tx)
	}
	return d.window
}

// short decides about a group for which there is too little room: without any, it is held. The rest of
// one that starts in part waits for room, or all of it is held where Nomad would start it in room
// that is others'.
func (d *decider) short(g record.Group, s start, placed int) (record.Group, error) {
	hold := reservedAway(d.tx, &g)
	if hold == nil && s.running == 0 && placed == 0 && mayHold(d.tx, d.key, d.ask) {
		d.tx.Forget(d.key, d.ask.Group)
		why := g.Decision.Explanation
		g = d.held(g, lacksRoom(d.ask))
		g.Decision.Explanation = append(g.Decision.Explanation, why...)
		return g, nil
	}
	if hold != nil && s.running == 0 {
		d.tx.Forget(d.key, d.ask.Group)
		return d.held(g, hold), nil
	}
	missing := s.allocs - placed
	if hold != nil && d.grows { // Nomad would start the new allocs in reserved room
		return g, &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("group %q: no room for %d of %d allocs: %s",
			d.ask.Group, missing, d.ask.Count, hold.Sentence)}
	}
	waitForRoom(&g, missing, d.ask.Count)
	return g, nil
}

// lacksRoom is the hold of a group for which no node has room.
func lacksRoom(a *admit.Ask) *admit.Hold {
	return &admit.Hold{Kind: view.WaitsForRoom, Sentence: fmt.Sprintf("no node has room for %s now", a)}
}

// mayHold reports whether a group may be held until there is room. Of children that is so for those that
// were born waiting: Nomad would forget the parent of any other one that is registered again.
func mayHold(tx *state.Tx, key nomad.JobKey, a *admit.Ask) bool {
	j := tx.Cluster.Job(key)
	return a.Child || (j == nil || j.Parent == "") && !tx.Cluster.Unchangeable(key)
}
