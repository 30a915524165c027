package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What runs of a group whose request changed is replaced. Where its update block has no
// canaries, each alloc goes in the plan that starts the new one, so that what it holds is free
// for that. Canaries run beside what runs until they are promoted, so that the queue pays for
// both; and where more allocs are missing of the group than it has canaries, for those, which
// start when the canaries are promoted, or at once if Nomad finds nothing to replace: not every
// change tells. A group that has to wait before it is replaced runs on as it was.

// replace places a group anew, in place of what runs of it.
func (p *groupPlacer) replace(g record.Group, given []admit.TaskDecision) (record.Group, error) {
	if p.beside = p.startBeside(); p.beside == 0 {
		defer p.setAside()()
		return p.fill(g, given, 0)
	}
	return p.fill(g, given, 0)
}

// refill places what is missing of a group, and of one that was held while something of it
// ran, what that is to be replaced by.
func (p *groupPlacer) refill(was record.Group, given []admit.TaskDecision) (record.Group, error) {
	running := p.tx.Live(p.key, p.ask.Group)
	if was.Decision.Hold != nil && running > 0 && (was.Replaces || p.startBeside() > 0) {
		return p.replace(was, given)
	}
	return p.fill(was, given, running)
}

// besideEnding is the hold of a group that runs while an earlier version of it has not ended,
// and whose queue could not pay for a third beside that; nil where it need not wait. Not every
// change tells whether Nomad replaces what runs, so any may: else each of many updates would
// leave another version that stops.
func (p *groupPlacer) besideEnding(was *record.Group) *admit.Hold {
	ends := func(a *nomad.Alloc) bool { return a.Group == p.ask.Group && a.Stopping && len(a.Devices) > 0 }
	if p.queue == nil || was.Decision.Hold != nil || p.tx.Live(p.key, p.ask.Group) == 0 || !slices.ContainsFunc(p.tx.AllocsOf(p.key), ends) {
		return nil
	}
	defer p.setAside()()
	why := p.tx.OverQuota(p.queue.Name, p.leastCost().Times(int64(p.ask.Count)))
	if why == "" {
		return nil
	}
	return &admit.Hold{Kind: view.WaitsForQuota, Sentence: why + ", beside what is replaced and has not ended"}
}

// startBeside is how many allocs start beside what runs of the group; 0 where it has no canaries.
func (p *groupPlacer) startBeside() int {
	running := p.tx.Live(p.key, p.ask.Group)
	if p.ask.JobType != "service" || running == 0 || p.ask.Canaries == 0 {
		return 0
	}
	return max(p.ask.Canaries, p.ask.Count-running)
}

// runningCharge is what the group's allocs cost its queue that canaries run beside.
func (p *groupPlacer) runningCharge() place.Charge {
	var sum place.Charge
	for _, a := range p.tx.AllocsOf(p.key) {
		if u, booked := p.tx.Usage(a.ID); booked && a.Group == p.ask.Group && !a.Canary && !a.Stopping {
			sum = sum.Plus(p.tx.Charge(u.NodeID, u.Takes))
		}
	}
	return sum
}
