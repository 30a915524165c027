// SPDX-License-Identifier: MPL-2.0

package state

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// idleKey names a task of an alloc and a GPU that it holds.
type idleKey struct{ alloc, task, gpu string }

// unusedSpan is since when a task was measured again and again not to use a GPU.
type unusedSpan struct {
	since, last time.Time // by this replica's clock; since is zero where it was used
	at          time.Time // of the last measurement, by the node's
	memoryMiB   int64     // that it held then
}

// unused is the shares that are held and not used.
type unused struct {
	clock        clock
	settings     *settings
	jobs         *jobs
	allocs       *allocs
	books        *books
	measurements *measurements
	onNode       map[string]map[idleKey]unusedSpan
	checked      time.Time // when idle work was looked for last
}

func newUnused(c clock, s *settings, j *jobs, a *allocs, b *books, m *measurements) *unused {
	return &unused{clock: c, settings: s, jobs: j, allocs: a, books: b, measurements: m, onNode: map[string]map[idleKey]unusedSpan{}}
}

// next is a span after the last reading of a task.
func (u *unused) next(a *nomad.Alloc, h *Holding, s unusedSpan) unusedSpan {
	if !u.measurements.lately(s.last) {
		s.since = time.Time{}
	}
	use, known := u.measurements.UseOf(a.NodeID, h.GPU.ID, h.Instances[0], h.Alone())
	switch {
	case !known:
		return unusedSpan{at: s.at}
	case !use.At.After(s.at):
		return s // nothing new is known
	}
	took := use.MemoryMiB > s.memoryMiB && use.Seat != gpu.SeatIdle
	s.last, s.at = u.clock.Now(), use.At
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
	case !u.measurements.usesNothing(a.NodeID, h, use), took && !s.since.IsZero():
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = u.clock.Now()
	}
	return s
}

// UnusedSince is since when a task has not used a GPU that it holds, as far as this replica
// measured; zero where it does, or where that is not known.
func (u *unused) UnusedSince(a *nomad.Alloc, h *Holding) time.Time {
	s := u.onNode[a.NodeID][idleKey{a.ID, h.Task, h.GPU.ID}]
	if !u.measurements.lately(s.last) {
		return time.Time{}
	}
	return s.since
}

// IdleSince is since when an alloc has not used any of its GPUs; false where it has, or where
// that is not known of one.
func (u *unused) IdleSince(a *nomad.Alloc) (since time.Time, idle bool) {
	for _, h := range u.books.Holdings(a) {
		at := u.UnusedSince(a, &h)
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
func (u *unused) idles(a *nomad.Alloc) bool {
	if !u.settings.config.WatchesIdle() {
		return false
	}
	after, action := u.jobs.QueueOf(a.Key(), a.Group).IdleRule()
	if action == config.IdleReport {
		return false
	}
	gang := []*nomad.Alloc{a}
	if u.jobs.IsGang(a.Key(), a.Group) {
		gang = u.allocs.AllocsOf(a.Key())
	}
	for _, one := range gang {
		if since, unused := u.IdleSince(one); len(one.Devices) > 0 && (!unused || u.clock.Now().Sub(since) < after) {
			return false
		}
	}
	return true
}

// suspects are the allocs that hold a GPU which they do not use.
func (u *unused) suspects() map[string]bool {
	ids := map[string]bool{}
	for _, spans := range u.onNode {
		for key, s := range spans {
			if !s.since.IsZero() {
				ids[key.alloc] = true
			}
		}
	}
	return ids
}
