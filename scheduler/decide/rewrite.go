package decide

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// given are the device blocks that a group keeps, and the work is narrowed to
// nodes that can serve them. Nil means that they are written anew: nothing of
// the group runs that this would replace, and it waits with blocks that were
// right when it came, while the room that there is now may be of another form.
func (p *groupPlacer) given(was *record.Group) []admit.TaskDecision {
	if p.waits(was) {
		p.avoid(was.Excluded)
		if was.Decision.Hold != nil || p.hasRoom() {
			return nil
		}
	}
	p.keepTo(was.Decision.Tasks)
	p.avoid(was.Excluded)
	return was.Decision.Tasks
}

// waits reports whether a group waits as a whole, with blocks that are the
// service's to change.
func (p *groupPlacer) waits(was *record.Group) bool {
	tx := p.tx
	waiting := was.Decision.Hold != nil || tx.Missing(p.key, p.ask.Group) > 0
	return waiting && tx.Live(p.key, p.ask.Group) == 0 && !slices.ContainsFunc(p.ask.Tasks, admit.TaskAsk.Plain)
}

// asBefore asks for what the device blocks of a group hold, where they are not
// to be written anew.
func (p *groupPlacer) asBefore(was *record.Group) {
	if p.waits(was) {
		return
	}
	for i := range p.parts {
		p.parts[i].Req.Cover = was.Covered
	}
}

func covered(parts []blocks.Part) bool {
	return slices.ContainsFunc(parts, func(p blocks.Part) bool { return p.Req.Cover })
}

// avoid leaves out nodes whose room is made for another group.
func (p *groupPlacer) avoid(excluded map[string]string) {
	if len(excluded) == 0 {
		return
	}
	banned := map[string]bool{}
	for id := range excluded {
		banned[id] = true
	}
	for i := range p.parts {
		p.parts[i] = p.parts[i].On(blocks.Cluster(p.tx).Without(p.parts[i].Req.Nodes, banned))
	}
}

func (p *groupPlacer) hasRoom() bool {
	_, err := blocks.Cluster(p.tx).Place(p.parts)
	return err == nil
}

// FitsRewritten reports whether a group that waits as a whole has room now, but
// not for the device blocks that it waits with.
func FitsRewritten(tx *state.Tx, key nomad.JobKey, g *record.Group) bool {
	p := &groupPlacer{tx: tx, key: key, ask: &g.Ask}
	if !p.waits(g) || HasRoom(tx, g) {
		return false
	}
	q, err := tx.Config().QueueFor(g.Ask.Namespace, g.Ask.Queue)
	if err != nil {
		return false
	}
	if p.parts, err = blocks.PartsOf(tx, &g.Ask, q); err != nil || len(p.parts) == 0 {
		return false
	}
	p.avoid(g.Excluded)
	return p.hasRoom()
}

// HasRoom reports whether any node has room for a group's device blocks as they are.
func HasRoom(tx *state.Tx, g *record.Group) bool {
	return tx.RoomFor(blocks.NeedOf(tx, g)).Count(state.FitsNow) > 0
}

// FitsOutside reports whether a node that is not among the candidates has room for
// a group: its candidates died or filled up.
func FitsOutside(tx *state.Tx, g *record.Group) bool {
	if len(g.Decision.Candidates) == 0 || len(g.Excluded) > 0 {
		return false
	}
	room := tx.RoomFor(blocks.NeedOf(tx, g))
	return room.Count(state.FitsNow) > 0 && !slices.ContainsFunc(g.Decision.Candidates, func(id string) bool { return room.On(id) == state.FitsNow })
}
