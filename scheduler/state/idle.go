package state

import (
	"maps"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// idleKey names a task of an alloc and a GPU that it holds.
type idleKey struct{ alloc, task, gpu string }

// unusedSpan is since when a task was measured again and again not to use a GPU.
type unusedSpan struct {
	since, last time.Time // by this replica's clock; since is zero where it was used
	at          time.Time // of the last measurement, by the node's
	memoryMiB   int64     // that it held then
}

// noteUse keeps since when the tasks of a node have not used their GPUs. A task whose use is
// not known uses them. Where it is known, it is learned what each uses.
func (tx *Tx) noteUse(node string) {
	before, now := tx.unused[node], map[idleKey]unusedSpan{}
	for _, a := range tx.allocs.onNode[node] {
		if len(a.Devices) == 0 || a.Status != "running" {
			continue
		}
		for _, h := range tx.Holdings(a) {
			key := idleKey{a.ID, h.Task, h.GPU.ID}
			tx.learnFrom(a, &h, before[key].at)
			now[key] = tx.measuredUse(a, &h, before[key])
		}
	}
	tx.unused[node] = now
	tx.rebookBursts(node)
}

// measuredUse is a span after what was measured last of a task.
func (r *Reader) measuredUse(a *nomad.Alloc, h *Holding, s unusedSpan) unusedSpan {
	if !r.lately(s.last) {
		s.since = time.Time{}
	}
	use, known := r.UseOf(a.NodeID, h.GPU.ID, h.Instances[0], h.Alone())
	switch {
	case !known:
		return unusedSpan{at: s.at}
	case !use.At.After(s.at):
		return s // nothing new is known
	}
	took := use.MemoryMiB > s.memoryMiB && use.Seat != gpu.SeatIdle
	s.last, s.at = r.Now(), use.At
	switch use.Seat {
	case gpu.SeatSuspending, gpu.SeatResuming: // it is on its way
		return s
	case gpu.SeatWaiting, gpu.SeatSuspended, gpu.SeatLost: // it wants the GPU, as far as is known
		s.since = time.Time{}
		return s
	}
	if use.Seat != gpu.SeatIdle { // the memory of one that is away is on the host
		s.memoryMiB = max(0, use.MemoryMiB)
	}
	switch {
	case !r.usesNothing(a.NodeID, h, use), took && !s.since.IsZero():
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = r.Now()
	}
	return s
}

// usesNothing reports whether a task was measured to use nothing of a GPU's compute. Where that is not
// known, it holds for a task without memory there, and for one that is alone on a GPU which
// does nothing.
func (r *Reader) usesNothing(node string, h *Holding, use nomad.TaskUse) bool {
	switch {
	case use.Milli != view.Unmeasured:
		return use.Milli == 0
	case use.MemoryMiB == 0:
		return true
	}
	return h.Alone() && r.measured[node].GPUs[h.GPU.ID].Milli == 0
}

// lately reports whether something was measured at most one measurement ago: one may be missing.
func (r *Reader) lately(at time.Time) bool {
	return r.Now().Sub(at) <= 2*r.Config().MonitorInterval+10*time.Second
}

// UnusedSince is since when a task has not used a GPU that it holds, as far as this replica
// measured; zero where it does, or where that is not known.
func (r *Reader) UnusedSince(a *nomad.Alloc, h *Holding) time.Time {
	s := r.unused[a.NodeID][idleKey{a.ID, h.Task, h.GPU.ID}]
	if !r.lately(s.last) {
		return time.Time{}
	}
	return s.since
}

// IdleSince is since when an alloc has not used any of its GPUs; false where it has, or where
// that is not known of one.
func (r *Reader) IdleSince(a *nomad.Alloc) (since time.Time, idle bool) {
	for _, h := range r.Holdings(a) {
		at := r.UnusedSince(a, &h)
		if at.IsZero() {
			return time.Time{}, false
		}
		if at.After(since) {
			since = at
		}
	}
	return since, !since.IsZero()
}

// idles reports whether an alloc, with its gang, has not used its GPUs for as long as its
// queue allows.
func (r *Reader) idles(a *nomad.Alloc) bool {
	if !r.Config().WatchesIdle() {
		return false
	}
	after, action := r.IdleRule(a)
	if action == config.IdleReport {
		return false
	}
	gang := []*nomad.Alloc{a}
	if r.IsGang(a.Key(), a.Group) {
		gang = r.AllocsOf(a.Key())
	}
	for _, one := range gang {
		if since, unused := r.IdleSince(one); len(one.Devices) > 0 && (!unused || r.Now().Sub(since) < after) {
			return false
		}
	}
	return true
}

// checkIdleEvery is how often it is looked for what became idle, at most.
const checkIdleEvery = time.Second

// CheckIdle has what is idle counted so, and what is not any more counted as other work:
// also where it was not measured lately.
func (tx *Tx) CheckIdle() {
	if !tx.Config().WatchesIdle() && len(tx.books.flagged) == 0 || tx.Now().Sub(tx.checked) < checkIdleEvery {
		return
	}
	tx.checked = tx.Now()
	stale := maps.Clone(tx.books.flagged)
	for node := range tx.unused {
		for key, s := range tx.unused[node] {
			if !s.since.IsZero() {
				stale[key.alloc] = true
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(stale)) {
		a := tx.allocs.byID[id]
		if a == nil || tx.idles(a) == tx.books.flagged[id] {
			continue
		}
		if _, booked := tx.Usage(id); booked {
			tx.unbook(id)
			tx.book(tx.usageOf(a))
		}
	}
}
