// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/outlook"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// mostForeseen is for how many of those that wait starts are estimated, the first.
const mostForeseen = 64

// Foresee looks at what runs and waits, to estimate when what waits is likely to start.
// The estimate itself needs no transaction.
func Foresee(tx *state.Tx) *Foreseen {
	f := waitingNow(tx)
	f.look(tx)
	return f
}

// Starts estimates when what waits is likely to start, by job/group. Nothing is said of
// what waits for its queue, or asks for several kinds of GPU at once.
func (f *Foreseen) Starts() map[string]state.Start {
	starts := map[string]state.Start{}
	for i, o := range f.sight.Outlook() {
		starts[f.names[i]] = f.start(f.turns[i], o)
	}
	for name, turn := range f.others {
		starts[name] = f.start(turn, outlook.Outlook{})
	}
	return starts
}

// ForeseeOf looks at the same for a group that is not registered yet, and would have to
// wait; ok is false where nothing can be estimated. The estimate itself needs no transaction.
func ForeseeOf(tx *state.Tx, key nomad.JobKey, a *admit.Ask) (estimate func() state.Start, ok bool) {
	f := waitingNow(tx)
	w, ok := waiterFor(tx, key, a, a.Count)
	if !ok {
		return nil, false
	}
	turn, order, own := 1, tx.Planner().Order(), turnOf(tx, a)
	for _, other := range slices.Collect(tx.Queue.Waiting()) {
		if order.Compare(other.Turn, own) < 0 {
			turn++
		}
	}
	at := 0
	for at < len(f.turns) && f.turns[at] < turn {
		at++
	}
	f.all++
	if at == mostForeseen { // more are ahead than are looked at
		f.at = tx.Now()
		return func() state.Start { return f.start(turn, outlook.Outlook{}) }, true
	}
	f.waiting = append(f.waiting[:at:at], w)
	f.look(tx)
	return func() state.Start { return f.start(turn, f.sight.Outlook()[at]) }, true
}

// Foreseen is what waits for room, in order, and what runs.
type Foreseen struct {
	sight   *outlook.Foresight
	at      time.Time
	waiting []outlook.Waiter
	names   []string // job/group
	turns   []int    // places in the order of all that wait, from 1
	others  map[string]int
	all     int
	past    outlook.Calibration
}

func waitingNow(tx *state.Tx) *Foreseen {
	f := &Foreseen{others: map[string]int{}}
	for i, w := range slices.Collect(tx.Queue.Waiting()) {
		f.all++
		name := w.Job.String() + "/" + w.Group
		r := tx.Queue.Record(w.Job)
		if r == nil || len(f.waiting) == mostForeseen {
			f.others[name] = i + 1
			continue
		}
		g := r.Groups[w.Group]
		one, ok := waiterFor(tx, w.Job, &g.Ask, w.Missing)
		if !ok || g.Decision.Hold != nil && g.Decision.Hold.Kind == view.WaitsForQuota {
			f.others[name] = i + 1
			continue
		}
		f.waiting, f.names, f.turns = append(f.waiting, one), append(f.names, name), append(f.turns, i+1)
	}
	return f
}

// waiterFor is a group as the core takes what waits; ok is false where it cannot.
func waiterFor(tx *state.Tx, key nomad.JobKey, a *admit.Ask, missing int) (w outlook.Waiter, ok bool) {
	group, err := newGroupAsk(tx, key, a)
	if err != nil || len(group.parts) != 1 {
		return w, false
	}
	r := &group.parts[0].Req
	takes := make([]place.Take, r.GPUs)
	for i := range takes {
		takes[i].Milli = tx.Planner().LeastCharge(r).Milli / int64(max(1, r.GPUs))
	}
	return outlook.Waiter{Request: *r, Count: missing, Together: a.Gang, Left: tx.Cluster.RunTime(key, a.Group, a.TimeLimit, takes)}, true
}

func (f *Foreseen) look(tx *state.Tx) {
	f.at, f.sight, f.past = tx.Now(), outlook.Foresee(tx.Planner().Snapshot(), f.waiting, tx.Cluster.Remaining), tx.Queue.Calibration()
}

func (f *Foreseen) start(turn int, o outlook.Outlook) state.Start {
	s := state.Start{Outlook: f.past.Correct(o), Estimated: o, At: f.at, Turn: turn, Of: f.all}
	s.Held, s.HeldOf = f.past.Held()
	return s
}

// ForeseePlan looks at when that of a plan would start which has to wait, and adds to the
// answers what would start now in its place. The result adds the former, and needs no
// transaction.
func ForeseePlan(tx *state.Tx, key nomad.JobKey, asks []admit.Ask, answers []admit.Decision) (explain func()) {
	texts := map[int]func() string{}
	for i, d := range answers {
		if asks[i].Later {
			continue
		}
		if fits := fitsInPlan(tx, key, asks, i, &d); fits != nil {
			answers[i].Explanation = append(answers[i].Explanation, fits.Text())
		}
		if len(d.Preferred) > 0 || d.Hold != nil && d.Hold.Kind == view.WaitsForQuota {
			continue
		}
		if estimate, ok := ForeseeOf(tx, key, &asks[i]); ok {
			until := turnOf(tx, &asks[i]).ShorterUntil()
			texts[i] = func() string {
				s := estimate()
				shown := s.Shown()
				shown.ShorterUntil = until
				return shown.Text(s.At)
			}
		}
	}
	return func() {
		for i, text := range texts {
			answers[i].Explanation = append(answers[i].Explanation, text())
		}
	}
}
