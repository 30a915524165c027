package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"
)

const (
	// silence is how long the stream may say nothing: Nomad sends a heartbeat
	// every thirty seconds.
	silence = 45 * time.Second
	// refresh is how often everything is read again although the stream is
	// well: cheap insurance against the unforeseen.
	refresh = 5 * time.Minute
	// retry is the pause before Nomad is tried again.
	retry = time.Second
)

// Watcher keeps a sink up to date until its context ends.
type Watcher struct {
	Client *Client
	Mirror *Mirror
	Sink   Sink
	// Heard is called whenever Nomad has said something, Lost when it cannot
	// be heard.
	Heard func()
	Lost  func(error)
}

// Run follows Nomad. Every round opens the event stream, reads the lists, and
// then applies the events that are newer than the lists; a round ends when the
// stream breaks, falls silent or is old.
func (w *Watcher) Run(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.round(ctx)
		if err == nil || ctx.Err() != nil {
			continue
		}
		w.Lost(err)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

const streamPath = "/v1/event/stream?topic=Node&topic=Allocation&topic=Job&topic=Evaluation"

func (w *Watcher) round(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()

	body, err := w.Client.api.Raw().Response(streamPath, query(ctx))
	if err != nil {
		return fmt.Errorf("open event stream: %w", err)
	}
	defer body.Close()
	changes, at, err := w.Client.relist(ctx, w.Mirror)
	if err != nil {
		w.keep(changes)
		return err
	}
	w.Sink.Apply(changes, max(at.nodes, at.allocs, at.jobs, at.evals))
	w.Heard()
	old := time.AfterFunc(refresh, func() { cancel(errOld) })
	defer old.Stop()
	err = w.follow(body, at, watchdog)
	if errors.Is(context.Cause(ctx), errOld) {
		return nil
	}
	if errors.Is(context.Cause(ctx), errSilent) {
		return errSilent
	}
	return err
}

var (
	errSilent = errors.New("event stream is silent")
	errOld    = errors.New("time to read the lists again")
)

// frame is one line of the event stream; a heartbeat has no events.
type frame struct {
	Index  uint64
	Events []event
}

type event struct {
	Topic, Type, Key, Namespace string
	Index                       uint64
	Payload                     json.RawMessage
}

func (w *Watcher) follow(body io.Reader, at listed, watchdog *time.Timer) error {
	dec := json.NewDecoder(body)
	for {
		var f frame
		if err := dec.Decode(&f); err != nil {
			return fmt.Errorf("read event stream: %w", err)
		}
		watchdog.Reset(silence)
		var changes []Change
		for _, e := range f.Events {
			more, err := w.Mirror.event(e, at)
			if err != nil {
				w.keep(changes)
				return err
			}
			changes = append(changes, more...)
		}
		if len(changes) > 0 {
			w.Sink.Apply(changes, f.Index)
		}
		w.Heard()
	}
}

// keep hands over what came before a failure: the mirror has it, and would not tell it again.
func (w *Watcher) keep(changes []Change) {
	if len(changes) > 0 {
		w.Sink.Apply(changes, 0)
	}
}

// event translates one event, unless the lists know it already.
func (m *Mirror) event(e event, at listed) ([]Change, error) {
	var p struct {
		Node       *api.Node
		Allocation *eventAlloc
		Job        *api.Job
		Deleted    bool
		Evaluation *eventEval
	}
	known := map[string]uint64{"Node": at.nodes, "Allocation": at.allocs, "Job": at.jobs, "Evaluation": at.evals}
	if e.Index <= known[e.Topic] {
		return nil, nil
	}
	if err := json.Unmarshal(e.Payload, &p); err != nil {
		return nil, fmt.Errorf("decode event %s of %s %q: %w", e.Type, e.Topic, e.Key, err)
	}
	switch {
	case e.Type == "NodeDeregistration":
		return m.nodeGone(e.Key), nil
	case p.Node != nil:
		return m.node(NewNode(p.Node, m.hardware)), nil
	case p.Allocation != nil:
		return m.alloc(p.Allocation.alloc()), nil
	case p.Job != nil && p.Deleted:
		return m.jobGone(JobKey{e.Namespace, e.Key}), nil
	case p.Job != nil:
		return m.job(NewJob(p.Job, m.hardware)), nil
	case p.Evaluation != nil:
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
