// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"errors"
	"net/http"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What waits or is refused is told what would start now in its place: the largest amount of
// the same, under the same conditions, quota and order. That is worked out for people who
// look, and not at each attempt to place it.

// scale is the sizes below a request, from the smallest, in one unit.
type scale struct {
	sizes int
	ask   func(n int) admit.TaskAsk
}

const mibPerGiB = 1024

// scalesOf are the scales on which a task could ask for less. What a coarse one has no
// answer for, a finer one may have.
func scalesOf(t *admit.TaskAsk) []scale {
	if t.Plain() {
		return []scale{{int(min(t.Devices[0].Count, 1<<16)) - 1, func(n int) admit.TaskAsk {
			less, block := *t, t.Devices[0]
			block.Count = int64(n)
			less.Devices = []admit.DeviceAsk{block}
			return less
		}}}
	}
	asked := t.Request
	request := func(change func(r *gpu.Request)) admit.TaskAsk {
		less := *t
		change(&less.Request)
		return less
	}
	memory := func(unit int64) func(n int) admit.TaskAsk {
		return func(n int) admit.TaskAsk {
			return request(func(r *gpu.Request) {
				r.MemoryMiB = int64(n) * unit
				if asked.Milli > 0 {
					r.Milli = max(1, asked.Milli*r.MemoryMiB/asked.MemoryMiB)
				}
			})
		}
	}
	fraction := func(n int) admit.TaskAsk {
		return request(func(r *gpu.Request) { r.Kind, r.Count, r.Milli = gpu.KindFraction, 0, int64(n) })
	}
	switch asked.Kind {
	case gpu.KindMemory:
		return []scale{
			{int((asked.MemoryMiB - 1) / mibPerGiB), memory(mibPerGiB)},
			{int(min(asked.MemoryMiB, mibPerGiB)) - 1, memory(1)},
		}
	case gpu.KindFraction:
		return []scale{{int(asked.Milli) - 1, fraction}}
	}
	return []scale{
		{asked.Count - 1, func(n int) admit.TaskAsk { return request(func(r *gpu.Request) { r.Count = n }) }},
		{gpu.MilliPerGPU - 1, fraction},
	}
}

// wouldFit is what would start now in place of a group; nil where nothing can be said: of
// what runs in part, of several device blocks, and where the groups of a gang start together.
// The window is of this moment.
func wouldFit(tx *state.Tx, key nomad.JobKey, a *admit.Ask, window *Window, excluded map[string]string) *view.Fits {
	allocs := a.Count
	if a.Gang {
		allocs = a.Together()
	}
	if !places(a) || a.Reservation != "" || len(a.Tasks) != 1 || allocs < 1 || tx.Cluster.Live(key, a.Group) > 0 || tx.Capacity.Assumed(key, a.Group) > 0 {
		return nil
	}
	group, err := newGroupAsk(tx, key, a)
	if err != nil || len(group.parts) != 1 || len(group.parts[0].Or) > 0 {
		return nil
	}
	group = without(without(group, excluded), hostsOf(tx, key, a))
	if window == nil {
		window = NewWindow(tx)
	}
	lot := &place.Lot{Tasks: allocs, Apart: apart(a, a.Together()), Without: keptNodes(group, window), Pays: pays(group, allocs)}
	found := &view.Fits{Allocs: allocs}
	for _, s := range scalesOf(&a.Tasks[0]) {
		if n, nodes := largest(group, lot, &s); n > 0 {
			less := s.ask(n)
			found.Ask, found.Nodes = less.String(), nodes
			break
		}
	}
	return found
}

// largest is the largest size of a scale that would start now, and on how many nodes.
func largest(a groupAsk, lot *place.Lot, s *scale) (n, nodes int) {
	request := func(n int) place.Request {
		less := *a.ask
		less.Tasks = []admit.TaskAsk{s.ask(n)}
		list, err := blocks.PartsOf(a.tx, &less, a.queue)
		if err != nil { // the request does not come in this unit
			return place.Request{GPUs: -1}
		}
		list[0].Req.Nodes = a.parts[0].Req.Nodes
		return list[0].Req
	}
	return a.tx.Planner().Largest(lot, s.sizes, request)
}

// keptNodes are the nodes that are kept for groups which go first, and for large tasks.
func keptNodes(a groupAsk, window *Window) map[string]bool {
	work, kept := a.work(), map[string]bool{}
	if !a.ask.Gang {
		kept = a.tx.Planner().KeptNodes(&a.parts[0].Req, a.tx.Now().Sub(work.Turn.Since))
	}
	for first := range window.Before(work) {
		kept[first.Node] = true
	}
	return kept
}

// pays reports whether a group's queue can pay the cost of all allocs.
func pays(a groupAsk, allocs int) func(all place.Charge) bool {
	if a.queue == nil {
		return nil
	}
	known := map[place.Charge]bool{}
	return func(all place.Charge) bool {
		ok, asked := known[all]
		if !asked {
			hold, err := quotaHold(a, all, start{allocs: allocs})
			ok = hold == nil && err == nil
			known[all] = ok
		}
		return ok
	}
}

// gangs counts the groups that start together.
func gangs(asks []admit.Ask) int {
	n := 0
	for i := range asks {
		if asks[i].Gang {
			n++
		}
	}
	return n
}

// withFits adds to the refusal of an ask what would start now.
func withFits(tx *state.Tx, key nomad.JobKey, asks []admit.Ask, at int, err error) error {
	var refusal *admit.Refusal
	if !errors.As(err, &refusal) || refusal.Status != http.StatusUnprocessableEntity && refusal.Status != http.StatusForbidden || asks[at].Gang && gangs(asks) > 1 {
		return err
	}
	if f := wouldFit(tx, key, &asks[at], nil, nil); f != nil && f.Ask != "" {
		refusal.Details = append(refusal.Details, f.Text())
	}
	return err
}

// fitsInPlan is what would start now in place of a group that a plan says has to wait; nil
// where it need not wait, or nothing can be said.
func fitsInPlan(tx *state.Tx, key nomad.JobKey, asks []admit.Ask, at int, d *admit.Decision) *view.Fits {
	if waits := d.Outcome == view.Held || d.Outcome == view.Waits; !waits || asks[at].Gang && gangs(asks) > 1 {
		return nil
	}
	return wouldFit(tx, key, &asks[at], nil, nil)
}

// Fitting works out the shortage of each of the first groups that wait, and a smaller request that would start now,
// one after the other, so that others need not wait for all of them.
type Fitting struct {
	window  *Window
	next    []state.Waiting
	nothing map[string]*view.Fits // by Waiting.Alike
	short   map[string]state.Lack // likewise
	found   map[string]*view.Fits
	lacks   map[string]state.Lack
}

// NewFitting begins with what waits now.
func NewFitting(tx *state.Tx) *Fitting {
	f := &Fitting{window: NewWindow(tx), nothing: map[string]*view.Fits{}, short: map[string]state.Lack{}, found: map[string]*view.Fits{}, lacks: map[string]state.Lack{}}
	for _, w := range slices.Collect(tx.Queue.Waiting()) {
		if len(f.next) == mostForeseen {
			break
		}
		f.next = append(f.next, *w)
	}
	return f
}

// Next works it out for one group more; false: there is none.
func (f *Fitting) Next(tx *state.Tx) bool {
	if len(f.next) == 0 {
		return false
	}
	w := &f.next[0]
	f.next = f.next[1:]
	r := tx.Queue.Record(w.Job)
	if tx.Cluster.Blocked(w.Job).Allocs(w.Group) == 0 {
		return true
	}
	if r == nil {
		if direct := tx.Cluster.Job(w.Job).Group(w.Group).Ask; direct != nil {
			f.lacks[w.Turn.ID] = lack(tx, w.Job, direct)
		}
		return true
	}
	g, known := r.Groups[w.Group]
	if known {
		f.lacks[w.Turn.ID] = f.lackOf(tx, w, &g.Ask)
	}
	if !known || Rests(&g, tx.Now()) || g.Ask.Gang && len(gangAsks(r)) > 1 {
		return true
	}
	fits := f.nothing[w.Alike] // where there is nothing for the first, there is nothing for the others
	if fits == nil || w.Alike == "" {
		fits = wouldFit(tx, w.Job, &g.Ask, f.window, g.Excluded)
	}
	if fits == nil {
		return true
	}
	f.found[w.Turn.ID] = fits
	if fits.Ask == "" {
		f.nothing[w.Alike] = fits
	}
	return true
}

// lackOf is the shortage of a group, which is that of all groups like it.
func (f *Fitting) lackOf(tx *state.Tx, w *state.Waiting, a *admit.Ask) state.Lack {
	of, known := f.short[w.Alike]
	if !known || w.Alike == "" {
		of = lack(tx, w.Job, a)
		f.short[w.Alike] = of
	}
	return of
}

// Found is the answers found and the shortages, by job/group.
func (f *Fitting) Found() (map[string]*view.Fits, map[string]state.Lack) { return f.found, f.lacks }
