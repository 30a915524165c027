// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Rival is a waiting group to keep off the nodes where room is made for another.
type Rival struct {
	Job   nomad.JobKey
	Group string
	Nodes []string
	// BestEffort is set where its priority is lower: Nomad may still give the room to the other one, and the
	// eviction is carried out even if this group cannot be kept off it.
	BestEffort bool
}

// unlessInVain returns nil where another waiting group would take the room and cannot be kept off it,
// or should not be yet.
func (e *Eviction) unlessInVain(tx *state.Tx) *Eviction {
	if slices.ContainsFunc(e.Rivals, func(r Rival) bool { return !r.BestEffort && !e.mayKeepOff(tx, r.Job) }) {
		return nil
	}
	return e
}

// mayKeepOff reports whether a job may be kept off the room. That registers it, and Nomad then runs the
// job's completed allocs again: unless the job loses allocs to this eviction anyway, it is kept off
// only once the group that the room is for has waited for as long as that repeats.
func (e *Eviction) mayKeepOff(tx *state.Tx, key nomad.JobKey) bool {
	waited := time.Duration(0)
	if b := tx.Blocked(e.Job); b != nil {
		waited = tx.Now().Sub(b.Since)
	}
	goes := slices.ContainsFunc(e.Victims, func(v Victim) bool { return v.Job == key })
	return !tx.Unchangeable(key) && (goes || tx.Repeats(key) <= waited)
}

// mostRivals is how many groups with a lower priority are looked at: each of them that would
// take the room is registered again.
const mostRivals = 100

// mostAtOnce is how many of them are kept off room that comes free in one moment. Nomad then evaluates as
// many jobs as all of its servers have schedulers, those that come first in its order, and any of them
// may get the room, each as often as the others: of 40 times the first one got it 11 times with 5
// schedulers, 4 times with 9 and twice with 17 (TestWhoGetsRoomInNomad). A server has as many schedulers as
// processors; the one that leads uses a quarter of them. So this is enough for three servers with up to
// 8 processors each.
const mostAtOnce = 20

// rivals are the groups that wait for room too and could take the room made. Nomad goes by the priority
// of jobs alone, and knows of no queue that takes back its own: so these are all with the same or a
// higher priority. A group held until all of its room is there ranks behind every waiting group. Of what
// has a lower priority otherwise, those are kept off that Nomad evaluates at the same time, or that need
// only a part of the room, which is there before the rest.
func rivals(tx *state.Tx, e *Eviction) (list []Rival) {
	var lower []*state.Waiting
	room, first := roomOf(tx, e), tx.PriorityOf(e.Job)
	if q := tx.QueueOf(e.Job, e.Group); q != nil {
		first = min(first, q.MaxPriority)
	}
	for w := range tx.WaitingFor("") {
		switch {
		case w.Job == e.Job, booked(tx, w):
		case tx.Unchangeable(w.Job) && w.Turn.Priority < min(first, tx.PriorityOf(w.Job)):
			// It was dispatched before its queue was bounded, or around the service.
		case tx.PriorityOf(w.Job) < tx.PriorityOf(e.Job):
			lower = append(lower, w)
		default:
			if r, _ := room.rival(w); len(r.Nodes) > 0 {
				list = append(list, r)
			}
		}
	}
	lower = append(lower, aboutToWait(tx, e)...)
	slices.SortFunc(lower, func(x, y *state.Waiting) int {
		return cmp.Or(tx.PriorityOf(y.Job)-tx.PriorityOf(x.Job), cmp.Compare(tx.Queued(x.Job), tx.Queued(y.Job)), strings.Compare(x.Turn.ID, y.Turn.ID))
	})
	atOnce := 0
	for _, w := range lower[:min(len(lower), mostRivals)] {
		if tx.Unchangeable(w.Job) || e.Room != nil && (!e.mayKeepOff(tx, w.Job) || tx.RepeatsAbove(w.Job) != "" || tx.Assumed(w.Job, w.Group) > 0) {
			continue
		}
		r, early := room.rival(w)
		if len(r.Nodes) == 0 || e.Room != nil && atOnce == mostAtOnce && !early {
			continue
		}
		atOnce++
		r.BestEffort = e.Room != nil
		list = append(list, r)
	}
	return list
}

// aboutToWait are groups that do not wait yet: they are being evicted for another job, and their evicted
// allocs have not ended. All that have a lower priority are best effort, as those that wait.
func aboutToWait(tx *state.Tx, e *Eviction) (list []*state.Waiting) {
	for _, key := range tx.KeptOff() {
		for _, a := range tx.AllocsOf(key) {
			known := func(w *state.Waiting) bool { return w.Job == key && w.Group == a.Group }
			off := tx.Record(key).Groups[a.Group].Excluded[a.NodeID] != ""
			if a.Stopping && off && key != e.Job && tx.Job(key) != nil && tx.Job(key).Group(a.Group) != nil && tx.Missing(key, a.Group) == 0 && tx.PriorityOf(key) < tx.PriorityOf(e.Job) && !slices.ContainsFunc(list, known) {
				list = append(list, &state.Waiting{Job: key, Group: a.Group})
			}
		}
	}
	return list
}

// alsoKeptOff has victims leave out the nodes where room is made for other jobs than this one as well.
func (e *Eviction) alsoKeptOff(tx *state.Tx) {
	for i := range e.Victims {
		v := &e.Victims[i]
		need := needFor(tx, v.Job, tx.Job(v.Job).Group(v.Group))
		if v.Gang || v.To != "" || need == nil {
			continue
		}
		for kept := range tx.KeptRoom() {
			node := kept.Usage.NodeID
			gone := func(u *place.Usage) bool {
				return u.ID == kept.Usage.ID || slices.ContainsFunc(e.Victims, func(v Victim) bool { return v.AllocID == u.ID })
			}
			if kept.Job == v.Job || kept.Job == e.Job || v.Also[node] != "" && v.Also[node] < kept.Job.String() || !tx.ServesNow(node, need, gone) {
				continue
			}
			if v.Also == nil {
				v.Also = map[string]string{}
			}
			v.Also[node] = kept.Job.String()
		}
	}
}

// rivalRoom is the room that an eviction makes, as those see it that wait for room too.
type rivalRoom struct {
	tx      *state.Tx
	nodes   []string
	victims map[string]bool // by alloc
	// parts are what the room comes free with, one after the other; with one there is nothing before all
	// is there.
	parts  []string
	ending bool // something else ends there, which is off the books already
}

func roomOf(tx *state.Tx, e *Eviction) *rivalRoom {
	m := &rivalRoom{tx: tx, nodes: e.Nodes(), victims: map[string]bool{}}
	for _, v := range e.Victims {
		m.victims[v.AllocID] = true
		if slices.Contains(m.nodes, v.Node) {
			m.parts = append(m.parts, v.AllocID)
		}
	}
	for a := range tx.Stopping() {
		m.ending = m.ending || slices.Contains(m.nodes, a.NodeID)
	}
	return m
}

// rival is a group that waits, with the nodes where it could take the room: none where it could not. Early
// is set where a part of the room is enough for it.
func (m *rivalRoom) rival(w *state.Waiting) (r Rival, early bool) {
	r = Rival{Job: w.Job, Group: w.Group}
	need := needFor(m.tx, w.Job, m.tx.Job(w.Job).Group(w.Group))
	if need == nil {
		return r, false
	}
	for _, node := range m.nodes {
		if mayStartOn(m.tx, w, node) && m.tx.ServesNow(node, need, m.without("")) {
			r.Nodes = append(r.Nodes, node)
			early = early || m.ending || len(m.parts) > 1 && slices.ContainsFunc(m.parts, func(left string) bool { return m.tx.ServesNow(node, need, m.without(left)) })
		}
	}
	return r, early
}

// without are the victims, but for one that has not ended; empty: all have.
func (m *rivalRoom) without(left string) func(*place.Usage) bool {
	return func(u *place.Usage) bool { return m.victims[u.ID] && u.ID != left }
}

// mayStartOn reports whether Nomad could start a group on a node: on one of its candidates, where it has
// some. One that is kept off a node already is kept off it for the next one as well.
func mayStartOn(tx *state.Tx, w *state.Waiting, node string) bool {
	r := tx.Record(w.Job)
	if r == nil || tx.Drifted(w.Job) || tx.Unrecorded(w.Job) {
		return true
	}
	g := r.Groups[w.Group]
	return g.Decision.Slots == 0 && (len(g.Decision.Candidates) == 0 || slices.Contains(g.Decision.Candidates, node) || g.Excluded[node] != "")
}

// needFor is what a registered group needs; nil where it waits for
// something else than room.
func needFor(tx *state.Tx, key nomad.JobKey, g *nomad.Group) *state.Need {
	if r := tx.Record(key); r != nil {
		if known, found := r.Groups[g.Name]; found {
			if known.Decision.Hold != nil {
				return nil
			}
			return blocks.NeedOf(tx, &known)
		}
	}
	need := &state.Need{}
	for _, t := range g.Tasks {
		for _, d := range t.Devices {
			need.Alloc.Devices = append(need.Alloc.Devices, place.Block{Device: d.Name, Count: d.Count})
		}
	}
	if len(need.Alloc.Devices) == 0 {
		return nil
	}
	return need
}
