// SPDX-License-Identifier: MPL-2.0

// Package follow traces a job after its admission: how long it waited, which work was
// evicted for it, where it was placed and when it started. It stands beside the state and
// is given the same changes.
package follow

import (
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const (
	// recent is how long ago something may have been that was not told yet: a replica
	// that begins to lead tells again what the one before it may not have.
	recent = 2 * time.Minute
	// skew is how far the clocks of Nomad's servers may be behind.
	skew = 5 * time.Second
)

// Follower passes changes on to the state, and tells of them.
type Follower struct {
	Traces *trace.Tracer
	State  *state.State
	// Decides reports whether this replica leads: one tells.
	Decides func() bool
	Now     func() time.Time

	mu   sync.Mutex
	told map[string]telling // by alloc
}

// telling is what of an alloc was told.
type telling struct{ placed, started bool }

// Apply takes changes from Nomad, as the state does.
func (f *Follower) Apply(changes []nomad.Change, index uint64) {
	f.State.Apply(changes, index)
	if !f.Traces.On() || !f.Decides() {
		return
	}
	for i := range changes {
		switch c := &changes[i]; {
		case c.Alloc != nil:
			f.alloc(c.Alloc)
		case c.AllocGone != "":
			f.forget(c.AllocGone)
		}
	}
}

// Lead traces what happened while no replica led. Spans that were sent already have the
// same IDs.
func (f *Follower) Lead() {
	if !f.Traces.On() {
		return
	}
	f.mu.Lock()
	f.told = nil
	f.mu.Unlock()
	var known []*nomad.Alloc
	f.State.View(func(r *state.Reader) {
		for a := range r.Cluster.Allocs() {
			if rec := r.Queue.Record(a.Key()); rec != nil && rec.Trace.Parent != "" {
				known = append(known, a)
			}
		}
	})
	for _, a := range known {
		f.alloc(a)
	}
}

// alloc tells the untold news of an alloc.
func (f *Follower) alloc(a *nomad.Alloc) {
	r := f.recorded(a.Key())
	if r == nil || a.Created.Before(r.Trace.At.Add(-skew)) {
		return
	}
	g, known := r.Groups[a.Group]
	if !known {
		return
	}
	now := f.Now()
	placed, started := f.mark(a, now)
	about := map[string]string{
		"nomad.namespace": a.Namespace, "nomad.job.id": a.Job, "nomad.task_group": a.Group, "nomad.alloc.id": a.ID, "nomad.node.name": a.NodeName,
		"gpu.queue": g.Ask.Queue, "gpu.ask": g.Ask.String(),
	}
	if placed {
		f.Traces.Later(r.Trace.Parent, trace.Wait, a.ID, r.Trace.At, a.Created, about)
		f.Traces.Later(r.Trace.Parent, trace.Placement, a.ID, a.Created, now, about)
	}
	if started {
		f.Traces.Later(r.Trace.Parent, trace.Start, a.ID, a.Created, a.Began, about)
	}
}

// mark notes the news of an alloc as told from now on, and returns which of them are new.
func (f *Follower) mark(a *nomad.Alloc, now time.Time) (placed, started bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.told[a.ID]
	placed = !was.placed && now.Sub(a.Created) < recent
	started = !was.started && !a.Began.IsZero() && now.Sub(a.Began) < recent
	switch {
	case !a.Holds():
		// Its last news. News told again come within a moment, under the same ID.
		delete(f.told, a.ID)
	case placed || started:
		if f.told == nil {
			f.told = map[string]telling{}
		}
		f.told[a.ID] = telling{was.placed || placed, was.started || started}
	}
	return placed, started
}

func (f *Follower) forget(alloc string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.told, alloc)
}

// Event tells of evictions and moves for a job.
func (f *Follower) Event(e view.Event) {
	if !f.Traces.On() || e.For == "" || e.DryRun || e.Failed || e.AllocID == "" {
		return
	}
	if r := f.recorded(state.ParseKey(e.For)); r != nil {
		f.Traces.Later(r.Trace.Parent, trace.Eviction, e.AllocID, e.At, e.At, map[string]string{
			"gpu.action": e.Kind, "nomad.namespace": e.Namespace, "nomad.job.id": e.JobID, "nomad.alloc.id": e.AllocID,
		})
	}
}

// recorded is a job's record, nil unless it is traced.
func (f *Follower) recorded(key nomad.JobKey) (traced *record.Record) {
	f.State.View(func(r *state.Reader) {
		if known := r.Queue.Record(key); known != nil && known.Trace.Parent != "" {
			traced = known
		}
	})
	return traced
}
