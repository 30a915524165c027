package decide

import (
	"fmt"
	"net/http"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// What runs of a group whose request changed is replaced: where its update block has
// canaries, these run beside it until they are promoted, so that its queue pays for both;
// else each goes in the plan that starts the new one, so that what it holds is free for
// that. A group that has to wait before it is replaced runs on as it was.

// replace places a group anew, in place of what runs of it.
func (p *groupPlacer) replace(g record.Group, given []admit.TaskDecision) (record.Group, error) {
	if p.canaries = p.beside(); p.canaries == 0 {
		defer p.setAside()()
		return p.fill(g, given, 0)
	}
	more, lost := p.startsBeside()
	each := p.dearest()
	p.lost = each.Times(int64(lost))
	if err := p.payBeside(g.Cost, more, each); err != nil {
		return g, err
	}
	g, err := p.fill(g, given, 0)
	if g.Decision.Hold == nil { // else what is lost waits as well
		more += lost
	}
	if err == nil && more > 0 {
		p.tx.AssumeAnywhere(p.key, p.ask.Group, p.queue.Name, more, each)
	}
	return g, err
}

// startsBeside is how many allocs of the version that runs Nomad starts beside the canaries: more
// than were registered, whatever holds the new version, and those that are lost.
func (p *groupPlacer) startsBeside() (more, lost int) {
	j := p.tx.Job(p.key)
	if p.queue == nil || j == nil || j.Group(p.ask.Group) == nil {
		return 0, 0
	}
	registered := j.Group(p.ask.Group).Count
	return max(0, p.ask.Count-registered), max(0, min(registered, p.ask.Count)-p.tx.Live(p.key, p.ask.Group))
}

// payBeside refuses a group that is to grow beside its canaries where its queue cannot pay for
// both now.
func (p *groupPlacer) payBeside(cost place.Charge, more int, each place.Charge) error {
	if more == 0 {
		return nil
	}
	all := cost.Times(int64(p.canaries)).Plus(each.Times(int64(more))).Plus(p.lost)
	_, why := p.tx.OverWithOwed(p.queue.Name, all, p.key)
	if why == "" {
		return nil
	}
	registered := p.ask.Count - more
	return &admit.Refusal{Status: http.StatusConflict, Text: fmt.Sprintf("group %q: Nomad starts %d more allocs of the version that runs before its canaries are promoted: %s; submit the change with count %d first",
		p.ask.Group, more, why, registered)}
}

// dearest is the most that an alloc which canaries run beside costs its queue.
func (p *groupPlacer) dearest() place.Charge {
	var most place.Charge
	for _, a := range p.tx.AllocsOf(p.key) {
		if u, booked := p.tx.Usage(a.ID); booked && a.Group == p.ask.Group && !a.Canary && !a.Stopping {
			c := p.tx.Charge(u.NodeID, u.Takes)
			most.Milli, most.MemoryMiB = max(most.Milli, c.Milli), max(most.MemoryMiB, c.MemoryMiB)
		}
	}
	return most
}

// refill places what is missing of a group, and of one that was held while something of it
// ran, what that is to be replaced by.
func (p *groupPlacer) refill(was record.Group, given []admit.TaskDecision) (record.Group, error) {
	running := p.tx.Live(p.key, p.ask.Group)
	if was.Decision.Hold != nil && running > 0 && (was.Replaces || p.beside() > 0) {
		return p.replace(was, given)
	}
	return p.fill(was, given, running)
}

// beside is how many canaries start beside what runs of the group.
func (p *groupPlacer) beside() int {
	if p.ask.JobType != "service" || p.tx.Live(p.key, p.ask.Group) == 0 {
		return 0
	}
	return p.ask.Canaries
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
