// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Seat is a free seat that a waiting group takes: those that sit there step aside for it,
// and nothing is evicted.
type Seat struct {
	Promise Promise
	Room    *Room
	// Aside are those that step aside; each has its own text, as victims have.
	Aside []Victim
	Text  string
}

// TakeSeat finds a free seat for a group that waits for room, with no task beside it or with
// tasks that step aside for it at once. Nil means that there is none, or that a seat is not
// what the group asks for.
func TakeSeat(tx *state.Tx, key nomad.JobKey, g *record.Group) *Seat {
	if !tx.Planner().Snapshot().HasSeats() || tx.Config().Preemption.Prefer != config.PreferSuspend || !OneByOne(g) {
		return nil
	}
	a, rewrite, err := oneMore(tx, key, g)
	if err != nil || !rewrite || unseatable(a) != "" {
		return nil
	}
	seat := a.parts[0]
	blocks.AsSeat(&seat.Req, &a.ask.Tasks[seat.Task])
	seat.Req.SeatPriority = blocks.SeatPriority(tx, &seat.Req)
	pl, err := blocks.PlaceBeside(tx.Planner(), &seat.Req, place.BesideNone, place.BesideLower)
	if err != nil {
		return nil
	}
	room := &Room{parts: []blocks.Part{seat}, rewrite: true}
	room.at = blocks.Placed{Node: pl.NodeID, Usage: pl.Usage, Each: []place.Usage{pl.Usage}, Score: pl.Score}
	s := &Seat{Promise: Promise{key, g.Ask.Group, pl.Usage}, Room: room}
	s.describe(a)
	return s
}

// describe says which allocs step aside, for which job and why.
func (s *Seat) describe(waiting groupAsk) {
	tx, at := waiting.tx, s.Room.at.Usage.Takes[0].GPU
	n := tx.Cluster.Node(s.Room.at.Node)
	g, group := &n.Plan.GPUs[at], n.View.GPUs[at].Group
	s.Room.why = fmt.Sprintf("takes a free seat on %s (%s), where no task sits", n.Plan.Name, group)
	for _, u := range tx.Planner().Snapshot().SitsOn(s.Room.at.Node, at) {
		if a := tx.Cluster.Alloc(u.ID); a != nil {
			why := fmt.Sprintf("job %s takes a free seat of priority %d for %s", waiting.key, g.SeatPriorityOf(s.Room.at.Usage.SeatPriority), waiting.ask)
			if u.Idle {
				why = idleText(tx, a.ID) + ", and " + why
			}
			s.Aside = append(s.Aside, Victim{
				AllocID: a.ID, Job: a.Key(), Group: a.Group, Node: a.NodeID, Priority: u.Priority, Queue: u.Queue,
				Text: fmt.Sprintf("%s (seat priority %d, alloc %.8s) steps aside on node %s: %s; nothing is evicted, since preemption.prefer is %q",
					a.Key(), g.SeatPriorityOf(u.SeatPriority), u.ID, n.Plan.Name, why, config.PreferSuspend),
			})
		}
	}
	if len(s.Aside) > 0 {
		s.Room.why = fmt.Sprintf("takes a free seat on %s (%s): what sits there steps aside; nothing is evicted, since preemption.prefer is %q", n.Plan.Name, group, config.PreferSuspend)
	}
	s.Text = fmt.Sprintf("job %s %s", waiting.key, s.Room.why)
}

// unseatable says why no seat serves an ask that does not ask for one; empty where one may.
func unseatable(a groupAsk) string {
	switch {
	case len(a.parts) != 1 || a.ask.Tasks[a.parts[0].Task].Plain():
		return "it asks with device blocks, or for several tasks"
	case a.ask.Sharing != "":
		return fmt.Sprintf("it asks for %s = %q", admit.KeySharing, a.ask.Sharing)
	case a.ask.Count != 1 || a.ask.Gang || a.ask.Child:
		return "only groups of one alloc take a seat instead"
	}
	r := a.parts[0].Req
	return blocks.AsSeat(&r, &a.ask.Tasks[a.parts[0].Task])
}

// noSeat says why an alloc is evicted although there are GPUs whose tasks step aside; empty
// where there are none.
func noSeat(a groupAsk) string {
	switch {
	case !a.tx.Planner().Snapshot().HasSeats():
		return ""
	case a.tx.Config().Preemption.Prefer == config.PreferEvict:
		return fmt.Sprintf("it takes no seat, since preemption.prefer is %q", config.PreferEvict)
	}
	if a.parts[0].Req.Shared {
		return "no seat is free"
	}
	if why := unseatable(a); why != "" {
		return "no seat serves it: " + why
	}
	return "no seat is free beside tasks that would step aside for it"
}

// seatTexts say of allocs with seats how many others have seats on the same GPU.
func seatTexts(tx *state.Tx, units []blocks.Placed) []string {
	var list []string
	for _, u := range units {
		for _, t := range u.Usage.Takes {
			n := tx.Cluster.Node(u.Node)
			g := &n.Plan.GPUs[t.GPU]
			if !blocks.IsSeat(g) {
				continue
			}
			others, lower := 0, 0
			for _, other := range tx.Planner().Snapshot().SitsOn(u.Node, t.GPU) {
				if other.Job == u.Usage.Job && other.Namespace == u.Usage.Namespace {
					continue
				}
				others++
				if other.Idle || g.SeatPriorityOf(other.SeatPriority) < g.SeatPriorityOf(u.Usage.SeatPriority) {
					lower++
				}
			}
			where := n.View.GPUs[t.GPU].Group
			switch {
			case others == 0:
				list = append(list, fmt.Sprintf("it has a seat on %s of %s, where no other task sits", where, n.Plan.Name))
			case others == lower:
				list = append(list, fmt.Sprintf("it has a seat on %s of %s: what sits there (%d) steps aside", where, n.Plan.Name, others))
			default:
				list = append(list, fmt.Sprintf("it has a seat on %s of %s, and takes turns with what sits there (%d, of which %d step aside at once)", where, n.Plan.Name, others, lower))
			}
		}
	}
	return slices.Compact(list)
}
