// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Revision is a change of the decision about a registered job. Only what Nomad
// changes in place is touched, unless nothing of the group runs.
type Revision struct {
	Group string
	// Retry places again what waits.
	Retry bool
	// Align brings the record and the registered job together.
	Align bool
	// Prefer is a node where room is being made for an alloc of the group.
	Prefer string
	// Room is the room made there, where it is known; see Eviction.
	Room *Room
	// RoomMade is the room that is made for all of a group that is held, and of its gang; none:
	// the revision is another one.
	RoomMade []Promise
	// Exclude are nodes to leave out while their room goes to For, and Include those to take back in.
	Exclude []string
	For     string
	Include []string
	// Only are the nodes that a system group is held to; Everywhere ends that.
	Only       []string
	Everywhere bool
	// Hold makes the group wait. SentBack is set where that is because Nomad did not start it, or
	// in part only, and says why.
	Hold     *admit.Hold
	SentBack string
	// OnCPU registers the group, and all of its gang, without GPUs; with Align only where that
	// fails.
	OnCPU bool
}

// Revised is what a revision changes: the record, the registered job, or both.
type Revised struct {
	Next        *record.Record
	Answers     []admit.Decision
	Record, Job bool
}

// Revise changes the decision about a job whose asks were read from Nomad just now.
// The group, and with it its gang where that starts or waits as one, is decided
// about; the others stay.
func Revise(tx *state.Tx, key nomad.JobKey, asks []admit.Ask, have *record.Record, r Revision) (Revised, error) {
	rollback, first := tx.Savepoint(key), r
	first.OnCPU = r.OnCPU && !r.Align
	out, err := revise(tx, key, asks, have, first)
	if err == nil {
		return out, nil
	}
	rollback()
	if first.OnCPU == r.OnCPU {
		return Revised{}, err
	}
	r.Align = false
	return Revise(tx, key, asks, have, r)
}

func revise(tx *state.Tx, key nomad.JobKey, asks []admit.Ask, have *record.Record, r Revision) (Revised, error) {
	out := Revised{Next: have.Clone(), Answers: make([]admit.Decision, len(asks))}
	out.Next.At, out.Next.Index, out.Next.Settled = tx.Now(), tx.Cluster.Index(), time.Time{}
	before, fixed := map[string]record.Group{}, tx.Cluster.Unchangeable(key)
	stays := fixed || !tx.Queue.Repeats(key).May()
	gang := slices.ContainsFunc(asks, func(a admit.Ask) bool { return a.Group == r.Group && a.Gang }) && (r.Retry || r.Hold != nil || r.OnCPU || len(r.RoomMade) > 0 || r.Align && !gangRuns(tx, key, asks))
	for i := range asks {
		a := &asks[i]
		was, known := have.Groups[a.Group]
		adopted := !known || was.Key != a.Key()
		if adopted {
			was = groupAsk{tx: tx, key: key, ask: a}.adopt(a.Was)
		}
		if !known && a.Child {
			arrive(tx, a, a.Count, false)
		}
		g := was
		if a.Group == r.Group || gang && a.Gang {
			var err error
			if stays = stays && (fixed || !r.needed(&was)); a.Template() {
				g.Ask, g.Decision.Hold = stored(a), nil // how it is written follows from that
			} else if stays {
				g = leftAsItIs(tx, key, was, r)
			} else if g, err = reviseGroup(tx, key, a, was, r); err != nil {
				return Revised{}, err
			}
			if a.Child {
				asBorn(&g, a)
			}
		}
		out.Record = out.Record || adopted
		out.Next.Groups[a.Group], before[a.Group] = g, was
	}
	if gang && !r.OnCPU {
		holdGang(tx, key, asks, out.Next.Groups)
	}
	for i := range asks {
		a, was, g := &asks[i], before[asks[i].Group], out.Next.Groups[asks[i].Group]
		different := !sameDecision(&was.Decision, &g.Decision)
		out.Record = out.Record || different || was.Ask.Count != g.Ask.Count || !maps.Equal(was.Excluded, g.Excluded) || !was.Attempts.Equal(g.Attempts)
		out.Job = out.Job || !stays && (different && !a.Child || a.Registered() != a.Fingerprint(&g.Decision))
		out.Answers[i] = g.Decision
		out.Answers[i].Priority = bounded(tx, a)
	}
	if out.Record || out.Job {
		tx.Changed()
	}
	return out, nil
}

// gangRuns reports whether something of a job's gang runs.
func gangRuns(tx *state.Tx, key nomad.JobKey, asks []admit.Ask) bool {
	return slices.ContainsFunc(asks, func(a admit.Ask) bool { return a.Gang && tx.Cluster.Live(key, a.Group) > 0 })
}

func reviseGroup(tx *state.Tx, key nomad.JobKey, a *admit.Ask, was record.Group, r Revision) (record.Group, error) {
	g := was
	switch {
	case r.OnCPU:
		return onCPU(tx, key, a, was)
	case len(r.RoomMade) > 0:
		g.Attempts, g.Assumed = roomMade(tx, key, &g, ""), promisedTo(key, a.Group, r.RoomMade)
		return g, nil
	}
	if was.Decision.OnCPU { // it was never registered so, or is not any more
		g = groupAsk{tx: tx, key: key, ask: a}.adopt(a.Was)
	}
	g.Excluded = maps.Clone(was.Excluded)
	if g.Excluded == nil {
		g.Excluded = map[string]string{}
	}
	if r.Align {
		g, r.Retry = align(tx, key, a, g)
	}
	exclude(&g, r.Exclude, r.For)
	if why := tx.Queue.RepeatAbove(key, &was); why != "" && len(r.Exclude) > 0 && r.Hold == nil {
		r.Hold = &admit.Hold{Kind: view.WaitsForQuota, Sentence: why + ", with what has completed and Nomad runs again"}
	}
	for _, id := range r.Include {
		delete(g.Excluded, id)
	}
	if len(g.Excluded) == 0 && r.Hold == nil {
		g.Decision.WithoutCanaries = false
	}
	if r.Prefer != "" {
		rest := slices.DeleteFunc(slices.Clone(g.Decision.Preferred), func(id string) bool { return id == r.Prefer })
		g.Decision.Preferred, g.Decision.Hold = append([]string{r.Prefer}, rest...), nil
		g.Attempts = roomMade(tx, key, &g, r.Prefer)
		if r.Room != nil {
			moveIn(tx, a, &g, r.Room)
		}
	}
	if len(r.Only) > 0 || r.Everywhere {
		g.Only = r.Only
	}
	if r.SentBack != "" {
		g.Attempts = g.Attempts.Again(tx.Now(), 0, r.SentBack)
		tx.Forget(key, a.Group)
		g.Assumed = nil
		if tx.Cluster.Live(key, a.Group) == 0 || a.Gang {
			r.Hold = restHold(&g.Attempts)
		}
	}
	if r.Hold != nil {
		g.Decision.Hold, g.Decision.WithoutCanaries, g.Assumed = r.Hold, true, nil
		g.Shown.At, g.Shown.Outcome, g.Shown.Summary = tx.Now(), view.Held, "waits for "+r.Hold.Kind+": "+r.Hold.Sentence
	}
	if r.Retry {
		return retry(tx, key, a, g)
	}
	narrow(tx, &g)
	return g, nil
}

// exclude has a group leave out some nodes: it neither prefers them nor is promised anything there.
func exclude(g *record.Group, nodes []string, whom string) {
	for _, id := range nodes {
		g.Excluded[id], g.Decision.WithoutCanaries = whom, true
	}
	g.Decision.Preferred = slices.DeleteFunc(slices.Clone(g.Decision.Preferred), func(id string) bool { return slices.Contains(nodes, id) })
	g.Assumed = slices.DeleteFunc(slices.Clone(g.Assumed), func(u place.Usage) bool { return slices.Contains(nodes, u.NodeID) })
}

// retry decides again about a group that waits, and tells of it when it need not
// wait any more.
func retry(tx *state.Tx, key nomad.JobKey, a *admit.Ask, was record.Group) (record.Group, error) {
	g, err := reconsider(tx, key, a, was, nil)
	if err != nil {
		return was, err
	}
	if was.Decision.Hold != nil && g.Decision.Hold == nil {
		tx.NoteDecision(g.Shown)
		tx.Note(view.Event{Kind: "release", Namespace: key.Namespace, JobID: key.ID, Text: fmt.Sprintf("group %s of job %s need not wait any more for %s", a.Group, key, was.Decision.Hold.Kind)})
	}
	return g, nil
}

// reconsider decides about a group that waits as if it came now. Its device blocks
// are rewritten only while nothing of it runs. With a window it is a trial: of the
// answer only the hold counts.
func reconsider(tx *state.Tx, key nomad.JobKey, a *admit.Ask, was record.Group, window *Window) (record.Group, error) {
	group, err := newGroupAsk(tx, key, a)
	if err != nil {
		return was, err
	}
	group, form, err := shape(group.asBefore(&was))
	if err != nil {
		return was, err
	}
	was.Cost, was.Direct = leastCost(tx, group.parts), false
	made := tx.Capacity.Assumed(key, a.Group) > 0 && was.Decision.Hold != nil
	tx.Forget(key, a.Group)
	group, given := group.keeping(&was)
	d := &decider{groupAsk: group, form: form, given: given, window: window, trial: window != nil}
	if made {
		d.made, d.waited = was.Assumed, was.Decision.Hold
	}
	return d.refill(was)
}

// promisedTo is the room promised to one group.
func promisedTo(key nomad.JobKey, group string, promises []Promise) (list []place.Usage) {
	for _, p := range promises {
		if p.Job == key && p.Group == group {
			list = append(list, p.Usage)
		}
	}
	return list
}

func sameDecision(x, y *admit.Decision) bool {
	sameHold := x.Hold == nil && y.Hold == nil || x.Hold != nil && y.Hold != nil && *x.Hold == *y.Hold
	sameNodes := x.Hold != nil || x.Slots == y.Slots && slices.Equal(x.Candidates, y.Candidates) // a hold stands for all of them
	return sameHold && sameNodes && x.OnCPU == y.OnCPU && x.WithoutCanaries == y.WithoutCanaries && slices.Equal(x.Preferred, y.Preferred) && slices.Equal(x.Bounds, y.Bounds) && sameDevices(x.Tasks, y.Tasks)
}

func sameDevices(x, y []admit.TaskDecision) bool {
	return slices.EqualFunc(x, y, func(s, t admit.TaskDecision) bool {
		sameBound := s.Bound == nil && t.Bound == nil || s.Bound != nil && t.Bound != nil && *s.Bound == *t.Bound
		return s.Task == t.Task && s.Share == t.Share && s.SeatPriority == t.SeatPriority && sameBound && slices.EqualFunc(s.Devices, t.Devices, func(d, e admit.Device) bool {
			return d.Name == e.Name && d.Count == e.Count && d.Prefer == e.Prefer && slices.Equal(d.Constraints, e.Constraints)
		})
	})
}
