// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A gang is the allocs of all groups of a job that say so. They are held until
// there is room for all of them, and let go as one; work is evicted for all or
// none; as a victim a gang goes as a whole; and one of which Nomad started, or
// kept, only a part goes back to waiting as one.

// holdGang holds every group of a job's gang where one of them has to wait. A gang
// with running allocs is not held here: the hold would cover these.
func holdGang(tx *state.Tx, key nomad.JobKey, asks []admit.Ask, groups map[string]record.Group) {
	var why *admit.Hold
	first := ""
	for i := range asks {
		if !asks[i].Gang {
			continue
		}
		if tx.Cluster.Live(key, asks[i].Group) > 0 {
			return
		}
		if hold := groups[asks[i].Group].Decision.Hold; why == nil && hold != nil {
			why, first = hold, asks[i].Group
		}
	}
	if why == nil {
		return
	}
	for i := range asks {
		g, known := groups[asks[i].Group]
		if !known || !asks[i].Gang || g.Decision.Hold != nil {
			continue
		}
		tx.Forget(key, asks[i].Group)
		hold := &admit.Hold{Kind: why.Kind, Sentence: fmt.Sprintf("it starts together with group %s: %s", first, why.Sentence)}
		g.Assumed, g.Decision.Preferred = nil, nil
		markHeld(&g, hold)
		groups[asks[i].Group] = g
	}
}

// tooFew is the hold of a gang group for which there is room for some only.
func tooFew(a *admit.Ask, found int) *admit.Hold {
	return &admit.Hold{Kind: view.WaitsForRoom, Sentence: fmt.Sprintf("its %d allocs start together, and there is room for %d", a.Together(), found)}
}

// gangAsks are the asks of a job's gang as they were recorded, by group.
func gangAsks(r *record.Record) []admit.Ask {
	var asks []admit.Ask
	for _, g := range r.Groups {
		if g.Ask.Gang {
			asks = append(asks, g.Ask)
		}
	}
	slices.SortFunc(asks, func(x, y admit.Ask) int { return strings.Compare(x.Group, y.Group) })
	return asks
}

// reconsiderAll decides about a group that waits as if it came now, and about all
// of its gang.
func reconsiderAll(tx *state.Tx, key nomad.JobKey, a *admit.Ask, groups map[string]record.Group, window *Window) (map[string]record.Group, error) {
	asks := []admit.Ask{*a}
	if a.Gang {
		asks = gangAsks(tx.Queue.Record(key))
		for i := range asks {
			asks[i] = asRegistered(tx, key, asks[i])
		}
	}
	next := map[string]record.Group{}
	for i := range asks {
		was, known := groups[asks[i].Group]
		if !known || tx.Cluster.Live(key, asks[i].Group) > 0 && asks[i].Group != a.Group {
			continue
		}
		g, err := reconsider(tx, key, &asks[i], was, window)
		if err != nil {
			return nil, err
		}
		next[asks[i].Group] = g
	}
	holdGang(tx, key, asks, next)
	return next, nil
}

// asRegistered is a recorded ask with the count that Nomad has, where that is smaller: a
// group may be scaled down around the service while it is held.
func asRegistered(tx *state.Tx, key nomad.JobKey, a admit.Ask) admit.Ask {
	if j := tx.Cluster.Job(key); j != nil && (a.JobType == "service" || a.JobType == "batch") {
		if g := j.Group(a.Group); g != nil {
			a.Count = min(a.Count, g.Count)
		}
	}
	return a
}

// together are the asks of what starts with a group: all of its gang, or itself.
func together(tx *state.Tx, key nomad.JobKey, g *record.Group) []admit.Ask {
	if g.Ask.Gang {
		return gangAsks(tx.Queue.Record(key))
	}
	return []admit.Ask{asRegistered(tx, key, g.Ask)}
}

// mostTogether bounds the allocs that evictions and moves are planned for at once: all else
// waits for the plan. With 10,000 nodes one in vain took 0.3 s (BenchmarkEvictForAll).
const mostTogether = 500

// togetherRequests is all that starts with a group as the core takes it, and whose each
// request is; none where the core cannot plan for it, it is too much, or something of it runs. Its queue pays for
// all of its allocs before any starts, also where fewer than all are enough for a gang.
func togetherRequests(tx *state.Tx, key nomad.JobKey, g *record.Group) (rs []place.Request, of []groupAsk) {
	asks := together(tx, key, g)
	forQuota := g.Decision.Hold != nil && g.Decision.Hold.Kind == view.WaitsForQuota
	for i := range asks {
		if tx.Cluster.Live(key, asks[i].Group) > 0 {
			return nil, nil
		}
		a, err := newGroupAsk(tx, key, &asks[i])
		if err != nil || len(a.parts) != 1 {
			return nil, nil // several device blocks are placed on one node: the core plans one request each, for any nodes
		}
		allocs := asks[i].Together()
		if forQuota || asks[i].Child || heldForTurn(g) && !asks[i].Gang { // else the rest would start in room that is kept
			allocs = asks[i].Count
		}
		if len(rs)+allocs > mostTogether {
			return nil, nil
		}
		a = without(a, hostsOf(tx, key, a.ask))
		for n := range allocs {
			r := a.parts[0].Req
			r.ID = fmt.Sprintf("%s/%d", r.ID, n)
			rs, of = append(rs, r), append(of, a)
		}
	}
	return rs, of
}

// EvictForAll plans the evictions that let a group that is held start with all that starts
// together with it; nil where there are none, for one of its allocs at least. A gang that is held for
// its turn gets room that is kept for none of those that go before it in the window.
func EvictForAll(tx *state.Tx, key nomad.JobKey, g *record.Group, window *Window) *Eviction {
	rs, of := togetherRequests(tx, key, g)
	if len(rs) == 0 {
		return nil
	}
	for i := range rs {
		rs[i].Priority -= tx.Config().Preemption.MinGap - 1
	}
	defer withoutStopping(tx)()
	if heldForTurn(g) {
		kept := keptNodes(of[0], window)
		for i := range rs {
			rs[i].Nodes = blocks.Cluster(tx).Without(rs[i].Nodes, kept)
		}
	}
	plan, err := preemptSparing(tx, rs, setsApart(of))
	if err != nil {
		return nil
	}
	e := &Eviction{Job: key, Group: of[0].ask.Group}
	for i := range plan.Placements {
		u := plan.Placements[i].Usage
		u.Priority = of[i].parts[0].Req.Priority
		e.Promises = append(e.Promises, Promise{key, of[i].ask.Group, u})
	}
	first := tx.Queue.Record(key).Groups[e.Group]
	if len(plan.Victims) == 0 || !payableAfter(tx, key, &first, e.Promises, plan.Victims) {
		return nil
	}
	e.describe(of[0], plan.Victims, window)
	return e
}

// setsApart names those of some allocs that take a node each, as the core takes it; nil where none do.
func setsApart(of []groupAsk) []string {
	names, any := make([]string, len(of)), false
	for i, a := range of {
		switch a.ask.Distinct {
		case admit.DistinctInJob:
			names[i], any = "/", true // no group is called so
		case admit.DistinctInGroup:
			names[i], any = "/"+a.ask.Group, true
		}
	}
	if !any {
		return nil
	}
	return names
}

// apart reports whether the allocs of a group take a node each.
func apart(a *admit.Ask, allocs int) bool {
	return a.Distinct == admit.DistinctInJob || a.Distinct == admit.DistinctInGroup && allocs > 1
}

// preemptSparing looks for victims that do not use their GPUs, where there may be any; then
// for such as stand alone before it takes whole gangs. Requests of the same name in apart take a
// node each.
func preemptSparing(tx *state.Tx, rs []place.Request, apart []string) (place.Plan, error) {
	if tx.Planner().Snapshot().AnyReclaimable() {
		idle := slices.Clone(rs)
		for i := range idle {
			idle[i].OnlyIdle = true
		}
		if plan, err := tx.Planner().PreemptApart(idle, apart, tx.Now()); err == nil {
			return plan, nil
		}
	}
	for i := range rs {
		rs[i].SpareGangs = true
	}
	plan, err := tx.Planner().PreemptApart(rs, apart, tx.Now())
	if err == nil {
		return plan, nil
	}
	for i := range rs {
		rs[i].SpareGangs = false
	}
	return tx.Planner().PreemptApart(rs, apart, tx.Now())
}

// withGangs adds to some victims the rest of their gangs.
func withGangs(tx *state.Tx, victims []place.Usage) []place.Usage {
	out := slices.Clone(victims)
	for _, v := range victims {
		a := tx.Cluster.Alloc(v.ID)
		if v.Gang == "" || a == nil {
			continue
		}
		for _, rank := range tx.Cluster.AllocsOf(a.Key()) {
			u, booked := tx.Capacity.Usage(rank.ID)
			if booked && u.Gang == v.Gang && !rank.Stopping && !slices.ContainsFunc(out, func(have place.Usage) bool { return have.ID == u.ID }) {
				out = append(out, u)
			}
		}
	}
	return out
}

// WouldStart reports whether a group that is held, and all of its gang, would be let
// go if it was decided about now, or another alloc of one that runs in part would get room. Nothing is
// changed.
func WouldStart(tx *state.Tx, key nomad.JobKey, g *record.Group, window *Window) bool {
	next, err := decidedNow(tx, key, g, window)
	return err == nil && next.Decision.Hold == nil && (len(next.Assumed) > 0 || g.Decision.Hold != nil)
}

// WouldWaitForQuota reports whether a group that is held for something else, such as its turn, would
// be held for quota if it was decided about now. Nothing is changed.
func WouldWaitForQuota(tx *state.Tx, key nomad.JobKey, g *record.Group, window *Window) bool {
	q := tx.Cluster.QueueOf(key, g.Ask.Group)
	if q == nil || g.Decision.Hold == nil || g.Decision.Hold.Kind == view.WaitsForQuota || tx.Queue.OverQuota(q.Name, g.Cost) == "" {
		return false
	}
	next, err := decidedNow(tx, key, g, window)
	hold := next.Decision.Hold
	return err == nil && hold != nil && hold.Kind == view.WaitsForQuota
}

// decidedNow is the hold of a group and the room that it would get if it was decided about now.
func decidedNow(tx *state.Tx, key nomad.JobKey, g *record.Group, window *Window) (now record.Group, err error) {
	tx.Try(func() {
		defer tx.Savepoint(key)()
		asked := asRegistered(tx, key, g.Ask)
		var next map[string]record.Group
		if next, err = reconsiderAll(tx, key, &asked, tx.Queue.Record(key).Groups, window); err == nil {
			now = next[g.Ask.Group]
		}
	})
	return now, err
}
