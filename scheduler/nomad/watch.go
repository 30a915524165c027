// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"
)

const (
	// refresh is how often everything is read again although the stream is
	// well: cheap insurance against the unforeseen.
	refresh = 5 * time.Minute
	// retry is the pause before Nomad is tried again.
	retry = time.Second
	// progress is how often a reading that is waited for says how far it is.
	progress = 10 * time.Second
)

// Watcher keeps a sink up to date until its context ends.
type Watcher struct {
	Client *Client
	Mirror *Mirror
	Sink   Sink
	// Heard is called whenever Nomad has said something, and the sink has all of it; Lost while
	// that is not so.
	Heard func()
	Lost  func(error)

	patience time.Duration // with lists that bring nothing; 0: silence
}

// Run follows Nomad. Every round opens an event stream, reads the lists while it applies what the
// stream tells, and then follows that alone; a round ends when the stream breaks, falls silent or is
// old, or there is a namespace that it does not cover. A stream that is well is read on until a
// later round has read the lists.
func (w *Watcher) Run(ctx context.Context) {
	var last *stream
	defer func() { last.close() }()
	for ctx.Err() == nil {
		var err error
		if last, err = w.round(ctx, last); err == nil || ctx.Err() != nil {
			continue
		}
		w.Lost(err)
		pause(ctx, retry)
	}
}

// round returns the stream that is to be read on, if one is well.
func (w *Watcher) round(ctx context.Context, before *stream) (*stream, error) {
	round, cancel := context.WithCancel(ctx)
	defer cancel()
	names, err := w.Client.namespaces(round)
	if err != nil {
		return before, err
	}
	now, err := w.Client.subscribe(ctx)
	if err != nil {
		return before, err
	}
	another := w.Client.another(round, names)
	if err := w.relist(round, before, now); err != nil {
		now.close()
		return before, err
	}
	before.close()
	if err := w.follow(now, another); err != nil {
		now.close()
		return nil, err
	}
	return now, nil
}

// relist reads all lists, and takes in what the streams tell meanwhile. After a rewind, what the mirror
// has is no newer than the lists.
func (w *Watcher) relist(ctx context.Context, before, now *stream) error {
	w.Mirror.begin()
	defer w.Mirror.end()
	for {
		r := w.Client.read(ctx, w.Mirror.known(), max(silence, w.patience))
		if err := w.takeIn(r, before, now); err != nil {
			if errors.Is(err, errStuck) {
				w.patience = min(refresh, 2*max(silence, w.patience))
			}
			return err
		}
		w.patience = 0
		if r.at.rewound(w.Mirror.at) {
			w.Mirror.rewind()
			continue
		}
		changes := r.finish(w.Mirror)
		w.Mirror.at, w.Mirror.complete = r.at, true
		w.Sink.Apply(changes, max(r.at.nodes, r.at.allocs, r.at.jobs, r.at.evals))
		w.Heard()
		return nil
	}
}

// takeIn merges the pages of a reading as they come, and what streams tell. Only a stream that has
// been followed before tells all that happens.
func (w *Watcher) takeIn(r *reading, before, now *stream) error {
	defer r.stop()
	slow := time.NewTicker(progress)
	defer slow.Stop()
	frames, following := now.next(), before.next()
	for {
		select {
		case p, more := <-r.pages:
			if !more {
				return r.err
			}
			changes := p(w.Mirror)
			for range len(r.pages) {
				changes = append(changes, (<-r.pages)(w.Mirror)...)
			}
			w.keep(changes)
		case f, more := <-following:
			if !more || w.take(before, f, f.Index) != nil {
				following = nil
				continue
			}
			w.Heard()
		case f, more := <-frames:
			if !more || w.take(now, f, 0) != nil {
				frames = nil // the round ends once the lists are read
			}
		case <-slow.C:
			if following == nil {
				w.Lost(fmt.Errorf("its lists are being read: %s so far", w.Mirror))
			}
		}
	}
}

// follow applies what a stream tells until it ends, which is an error, or another is to be opened.
func (w *Watcher) follow(s *stream, another <-chan struct{}) error {
	old := time.NewTimer(refresh)
	defer old.Stop()
	for {
		select {
		case f, more := <-s.frames:
			if !more {
				return s.err
			}
			if err := w.take(s, f, f.Index); err != nil {
				return err
			}
			w.Heard()
		case <-old.C:
			return nil
		case <-another:
			return nil
		}
	}
}

// take applies one frame of a stream. Index is the one that the sink has everything of then. A
// stream with an event that cannot be read is over.
func (w *Watcher) take(s *stream, f frame, index uint64) error {
	var changes []Change
	for _, e := range f.Events {
		more, err := w.Mirror.event(e)
		if err != nil {
			w.keep(changes)
			s.close()
			s.err = err
			return err
		}
		changes = append(changes, more...)
	}
	if len(changes) > 0 {
		w.Sink.Apply(changes, index)
	}
	return nil
}

// keep hands over a part of all changes: the mirror has them, and would not tell them again.
func (w *Watcher) keep(changes []Change) {
	if len(changes) > 0 {
		w.Sink.Apply(changes, 0)
	}
}

// event translates one event, unless the lists know it already.
func (m *Mirror) event(e event) ([]Change, error) {
	var p struct {
		Node       *api.Node
		Allocation *eventAlloc
		Job        *api.Job
		Deleted    bool
		Evaluation *eventEval
	}
	known := map[string]uint64{"Node": m.at.nodes, "Allocation": m.at.allocs, "Job": min(m.at.jobs, m.at.allocs, m.at.evals), "Evaluation": m.at.evals}
	if e.Index <= known[e.Topic] {
		return nil, nil
	}
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return nil, fmt.Errorf("decode event %s of %s %q: %w", e.Type, e.Topic, e.Key, err)
	}
	switch {
	case e.Type == "NodeDeregistration":
		m.note(e.Key, e.Index, true)
		if n := m.nodes[e.Key]; n != nil && n.Index > e.Index { // listed after it came back
			return nil, nil
		}
		return m.nodeGone(e.Key), nil
	case p.Node != nil:
		m.note(p.Node.ID, e.Index, false)
		return m.node(NewNode(p.Node, m.hardware)), nil
	case p.Allocation != nil:
		a := p.Allocation.alloc()
		m.note(a.ID, e.Index, !a.Holds() && !a.Returns)
		return m.alloc(a), nil
	case p.Job != nil:
		key := JobKey{e.Namespace, e.Key}
		m.note(key.String(), e.Index, p.Deleted)
		if p.Deleted {
			return m.purged(key, e.Index), nil
		}
		if e.Index <= m.at.jobs {
			return nil, nil
		}
		return m.job(NewJob(p.Job, m.hardware)), nil
	case p.Evaluation != nil:
		m.note(p.Evaluation.ID, e.Index, p.Evaluation.Status != "blocked")
		return m.eval(p.Evaluation), nil
	}
	return nil, nil
}

// ignoreMissing drops the error of something that was deleted meanwhile.
func ignoreMissing(err error) error {
	var unexpected api.UnexpectedResponseError
	if errors.As(err, &unexpected) && unexpected.StatusCode() == http.StatusNotFound {
		return nil
	}
	return err
}
