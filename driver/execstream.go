// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
)

// Nomad does not tell a driver that whoever watches a command has gone: "nomad alloc
// exec" that is killed leaves its session open until the command writes something. What
// does end are the heartbeats, which Nomad's command line and web UI send every ten
// seconds while they are there. So a session that had heartbeats ends without them.

// watcherPatience is how long a session lasts without a heartbeat: six of Nomad's.
const watcherPatience = time.Minute

var errWatcherGone = errors.New("whoever watched the command has gone: its heartbeats have stopped")

// ExecTaskStreamingRaw is ExecTaskStreaming for a caller who may vanish.
func (d *Driver) ExecTaskStreamingRaw(ctx context.Context, taskID string, command []string, tty bool, stream drivers.ExecTaskStream) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := &watchedStream{ExecTaskStream: stream, patience: d.watcherPatience, gone: func() { cancel(errWatcherGone) }}
	options, copied := drivers.StreamToExecOptions(ctx, command, tty, watched)
	result, err := d.ExecTaskStreaming(ctx, taskID, options)
	if cause := context.Cause(ctx); errors.Is(cause, errWatcherGone) {
		return errors.Join(fmt.Errorf("exec %q in task %q: %w", command, taskID, cause), err)
	}
	if err != nil {
		return err
	}
	select {
	case err := <-copied:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return fmt.Errorf("exec %q in task %q: %w", command, taskID, ctx.Err())
	}
	return stream.Send(&drivers.ExecTaskStreamingResponseMsg{
		Exited: true, Result: &proto.ExitResult{ExitCode: int32(result.ExitCode), Signal: int32(result.Signal), OomKilled: result.OOMKilled},
	})
}

// watchedStream calls gone when a caller who sent heartbeats has sent nothing for the
// patience. The time runs while there is nothing to receive, and so not while a command
// leaves its input unread.
type watchedStream struct {
	drivers.ExecTaskStream
	patience time.Duration
	gone     func()
	beats    bool // whether there was a heartbeat
}

// Recv is called by one goroutine.
func (s *watchedStream) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	if s.beats {
		defer time.AfterFunc(s.patience, s.gone).Stop()
	}
	m, err := s.ExecTaskStream.Recv()
	s.beats = s.beats || err == nil && m.Setup == nil && m.Stdin == nil && m.TtySize == nil
	return m, err
}
