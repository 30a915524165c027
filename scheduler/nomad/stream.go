// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// streamPath takes what happens in all namespaces, as far as they exist when the stream is opened.
const streamPath = "/v1/event/stream?topic=Node&topic=Allocation&topic=Job&topic=Evaluation"

// silence is how long the stream may say nothing: Nomad sends a heartbeat every thirty seconds.
const silence = 45 * time.Second

var errSilent = errors.New("event stream is silent")

// stream is an event stream of Nomad's. A goroutine of its own reads it at all times, since Nomad
// closes a stream that is not read for 40 seconds.
type stream struct {
	frames chan frame // closed at the end
	err    error      // why it ended, once frames is closed
	cancel context.CancelCauseFunc
}

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

// subscribe opens an event stream.
func (c *Client) subscribe(ctx context.Context) (*stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	watchdog := time.AfterFunc(brief, func() { cancel(errSilent) })
	body, err := c.api.Raw().Response(streamPath, query(ctx))
	if err != nil {
		watchdog.Stop()
		cancel(nil)
		return nil, fmt.Errorf("open event stream: %w", err)
	}
	s := &stream{frames: make(chan frame), cancel: cancel}
	watchdog.Reset(silence)
	go s.read(ctx, body, watchdog)
	return s, nil
}

func (s *stream) read(ctx context.Context, body io.ReadCloser, watchdog *time.Timer) {
	defer close(s.frames)
	defer body.Close()
	defer watchdog.Stop()
	dec := json.NewDecoder(body)
	for n := 0; ; n++ {
		var f frame
		if err := dec.Decode(&f); err != nil {
			s.err = fmt.Errorf("read event stream: %w", err)
			if n == 0 && errors.Is(err, io.EOF) { // all that Nomad says where it refuses one
				s.err = errors.New("read event stream: Nomad ended it at once: the service's token needs read-job in every namespace, and node read")
			}
			if errors.Is(context.Cause(ctx), errSilent) {
				s.err = errSilent
			}
			return
		}
		watchdog.Stop() // taking in a frame is no silence of Nomad
		select {
		case s.frames <- f:
		case <-ctx.Done():
			s.err = context.Cause(ctx)
			return
		}
		watchdog.Reset(silence)
	}
}

// next is where frames come from; of no stream, never.
func (s *stream) next() <-chan frame {
	if s == nil {
		return nil
	}
	return s.frames
}

// close ends a stream, if there is one, and waits until it is not read any more.
func (s *stream) close() {
	if s == nil {
		return
	}
	s.cancel(nil)
	for range s.frames { //nolint:revive // the last frame is of no use
	}
}
