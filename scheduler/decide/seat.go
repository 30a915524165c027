package decide

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
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

// isSeat reports whether tasks step aside for each other on a GPU.
func isSeat(g *place.GPU) bool { return g.Mode == gpu.ModeShared && g.Sharing == gpu.SharingSuspend }

// TakeSeat finds a free seat for a group that waits for room, with no task beside it or with
// tasks that step aside for it at once. Nil means that there is none, or that a seat is not
// what the group asks for.
func TakeSeat(tx *state.Tx, key nomad.JobKey, g *record.Group) *Seat {
	p := &groupPlacer{tx: tx, key: key, ask: &g.Ask}
	var err error
	if p.queue, err = tx.Config().QueueFor(g.Ask.Namespace, g.Ask.Queue); err != nil {
		return nil
	}
	if p.parts, err = parts(tx, &g.Ask, p.queue); err != nil || !tx.Snapshot().HasSeats() || tx.Config().Preemption.Prefer != config.PreferSuspend {
		return nil
	}
	if p.unseatable() != "" || g.Decision.Hold != nil || !p.waits(g) || tx.Unchangeable(key) {
		return nil
	}
	p.avoid(g.Excluded)
	seat := p.parts[0]
	asSeat(&seat.req, &p.ask.Tasks[seat.task])
	seat.req.SeatPriority = seatPriority(tx, &seat.req)
	pl, err := placeBeside(tx.Planner(), &seat.req, place.BesideNone, place.BesideLower)
	if err != nil {
		return nil
	}
	room := &Room{parts: []part{seat}, rewrite: true}
	room.placedAlloc = placedAlloc{node: pl.NodeID, usage: pl.Usage, parts: []place.Usage{pl.Usage}, score: pl.Score}
	s := &Seat{Promise: Promise{key, g.Ask.Group, pl.Usage}, Room: room}
	s.describe(p)
	return s
}

// describe says which allocs step aside, for which job and why.
func (s *Seat) describe(p *groupPlacer) {
	tx, at := p.tx, s.Room.usage.Takes[0].GPU
	n := tx.Node(s.Room.node)
	g, group := &n.Plan.GPUs[at], n.View.GPUs[at].Group
	s.Room.why = fmt.Sprintf("takes a free seat on %s (%s), where no task sits", n.Plan.Name, group)
	for _, u := range tx.Snapshot().SitsOn(s.Room.node, at) {
		if a := tx.Alloc(u.ID); a != nil {
			why := fmt.Sprintf("job %s takes a free seat of priority %d for %s", p.key, g.SeatPriorityOf(s.Room.usage.SeatPriority), p.ask)
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
	s.Text = fmt.Sprintf("job %s %s", p.key, s.Room.why)
}

// unseatable says why no seat serves an ask that does not ask for one; empty where one may.
func (p *groupPlacer) unseatable() string {
	if len(p.parts) != 1 || p.ask.Tasks[p.parts[0].task].Plain() {
		return "it asks with device blocks, or for several tasks"
	}
	switch a := p.ask; {
	case a.Sharing != "":
		return fmt.Sprintf("it asks for %s = %q", admit.KeySharing, a.Sharing)
	case a.Count != 1 || a.Gang:
		return "only groups of one alloc take a seat instead"
	}
	r := p.parts[0].req
	return asSeat(&r, &p.ask.Tasks[p.parts[0].task])
}

// noSeat says why an alloc is evicted although there are GPUs whose tasks step aside; empty
// where there are none.
func (p *groupPlacer) noSeat() string {
	switch {
	case !p.tx.Snapshot().HasSeats():
		return ""
	case p.tx.Config().Preemption.Prefer == config.PreferEvict:
		return fmt.Sprintf("it takes no seat, since preemption.prefer is %q", config.PreferEvict)
	}
	if p.parts[0].req.Shared {
		return "no seat is free"
	}
	if why := p.unseatable(); why != "" {
		return "no seat serves it: " + why
	}
	return "no seat is free beside tasks that would step aside for it"
}

// asSeat turns a request into one for a seat, or says why a seat does not serve it.
func asSeat(r *place.Request, t *admit.TaskAsk) string {
	switch {
	case t.Driver != containerd:
		return fmt.Sprintf("a task with a seat runs with driver %q, not %q", containerd, t.Driver)
	case t.Request.Kind == gpu.KindCount && t.Request.Count != 1:
		return fmt.Sprintf("%s = %q: a task with a seat can use one GPU; write 1, or GPU memory such as 20G", admit.KeyGPU, t.Request)
	case t.Request.Milli > 0 || t.LimitMilli > 0:
		return fmt.Sprintf("%s = %q: a seat promises no share of compute; write 1, or GPU memory such as 20G", admit.KeyGPU, t.Request)
	case r.Profile != "":
		return "a MIG instance has no seats"
	}
	r.GPUs, r.Whole, r.Shared, r.Cover = 1, false, true, false
	r.Sharing, r.Mode, r.MinMemoryMiB, r.MemoryMiBPerGPU = gpu.SharingSuspend, gpu.ModeShared, max(r.MinMemoryMiB, t.Request.MemoryMiB), 0
	return ""
}

// containerd is the driver whose tasks can be suspended.
const containerd = "containerd"

// seatMemory is the GPU memory that a task with a seat is said to take; 0: it may take all.
// What comes near to all of it is not said: the driver keeps a part for itself.
func seatMemory(asked int64, g *place.GPU) int64 {
	if asked > g.MemoryMiB*9/10 {
		return 0
	}
	return asked
}

// seatConditions keep a block on GPUs with seats, and of the memory that was asked for.
func seatConditions(r *place.Request) []admit.Constraint {
	list := []admit.Constraint{{LTarget: "${device.attr.sharing}", RTarget: string(gpu.SharingSuspend), Operand: "="}}
	if r.MinMemoryMiB > 0 {
		// Cards tell a little less than the size that they are sold as.
		list = append(list, admit.Constraint{LTarget: "${device.attr.memory}", RTarget: strconv.FormatInt((r.MinMemoryMiB-1)/1024*1024+1, 10) + " MiB", Operand: ">="})
	}
	return list
}

// seatPriority is what the seat of a request has: the job's priority, as far as its queue and
// the nodes allow it, or the lowest where the queue borrows it. So what is borrowed steps
// aside first.
func seatPriority(tx *state.Tx, r *place.Request) int {
	if tx.Planner().Borrows(r) {
		return gpu.MinSeatPriority
	}
	return max(gpu.MinSeatPriority, min(r.Priority, tx.Snapshot().LowestSeatBound()))
}

// writtenSeatPriority is what the author wrote for a task with device blocks, as it is
// registered; 0: nothing that is known.
func writtenSeatPriority(tx *state.Tx, a *admit.Ask, task int) int {
	if j := tx.Job(nomad.JobKey{Namespace: a.Namespace, ID: a.JobID}); j != nil {
		if g := j.Group(a.Group); g != nil {
			if t := g.Task(a.Tasks[task].Task); t != nil {
				return t.SeatPriority
			}
		}
	}
	return 0
}

// seated places a request, where it is for a seat on a GPU that is empty, or else beside
// tasks that step aside for it, or else beside any.
func (on scratch) seated(r *place.Request) (place.Placement, error) {
	if !r.Shared || r.Beside != place.BesideAny || !on.snap.HasSeats() {
		return on.plan.Place(r)
	}
	return placeBeside(on.plan, r, place.BesideNone, place.BesideLower, place.BesideAny)
}

// placeBeside places a request by the first rule under which there is room.
func placeBeside(plan *place.Planner, r *place.Request, rules ...place.Beside) (pl place.Placement, err error) {
	for _, beside := range rules {
		one := *r
		one.Beside = beside
		if pl, err = plan.Place(&one); err == nil || !errors.Is(err, place.ErrNoRoom) {
			return pl, err
		}
	}
	return pl, err
}

// seatTexts say of allocs with seats how many others have seats on the same GPU.
func seatTexts(tx *state.Tx, units []placedAlloc) []string {
	var list []string
	for _, u := range units {
		for _, t := range u.usage.Takes {
			n := tx.Node(u.node)
			g := &n.Plan.GPUs[t.GPU]
			if !isSeat(g) {
				continue
			}
			others, lower := 0, 0
			for _, other := range tx.Snapshot().SitsOn(u.node, t.GPU) {
				if other.Job == u.usage.Job && other.Namespace == u.usage.Namespace {
					continue
				}
				others++
				if other.Idle || g.SeatPriorityOf(other.SeatPriority) < g.SeatPriorityOf(u.usage.SeatPriority) {
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
