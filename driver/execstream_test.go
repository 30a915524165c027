// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
)

// watcher is one who watches a command, as Nomad shows one to a driver.
type watcher struct {
	messages chan *drivers.ExecTaskStreamingRequestMsg
	ctx      context.Context
}

func newWatcher(t *testing.T) watcher {
	return watcher{make(chan *drivers.ExecTaskStreamingRequestMsg), t.Context()}
}

func (w watcher) Send(*drivers.ExecTaskStreamingResponseMsg) error { return nil }

// Recv returns what was sent, and never that the watcher was killed.
func (w watcher) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	select {
	case m, ok := <-w.messages:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	}
}

var heartbeat = &drivers.ExecTaskStreamingRequestMsg{}

// A watcher who is killed says nothing; its heartbeats stop.
func TestExecEndsWithItsWatcher(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		e.driver.watcherPatience = 300 * time.Millisecond
		w := newWatcher(t)
		ended := make(chan error)
		go func() {
			ended <- e.driver.ExecTaskStreamingRaw(t.Context(), cfg.ID, []string{"sleep", "4712"}, false, w)
		}()
		w.messages <- heartbeat
		must.ErrorIs(t, <-ended, errWatcherGone)
		result, err := e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "cat /proc/[0-9]*/cmdline"}, callTimeout)
		must.NoError(t, err)
		must.StrNotContains(t, string(result.Stdout), "4712", must.Sprint("the command runs on"))
	})
}

// Silence is an end only from one who sent heartbeats, and only while there is nothing
// that the command still has to read.
func TestWatchedStream(t *testing.T) {
	stdin := &drivers.ExecTaskStreamingRequestMsg{Stdin: &proto.ExecTaskStreamingIOOperation{Data: []byte("x")}}
	size := &drivers.ExecTaskStreamingRequestMsg{TtySize: &proto.ExecTaskStreamingRequest_TerminalSize{Height: 1, Width: 1}}
	for _, row := range []struct {
		name string
		act  func(s *watchedStream, w watcher)
		gone bool
	}{
		{"no heartbeat", func(s *watchedStream, w watcher) {
			go func() { w.messages <- stdin; w.messages <- size }()
			_, _ = s.Recv()
			_, _ = s.Recv()
			go func() { time.Sleep(time.Hour); w.messages <- stdin }()
			_, _ = s.Recv()
		}, false},
		{"the request itself, and an end", func(s *watchedStream, w watcher) {
			go func() {
				w.messages <- &drivers.ExecTaskStreamingRequestMsg{Setup: &proto.ExecTaskStreamingRequest_Setup{}}
				close(w.messages)
			}()
			_, err := s.Recv()
			must.NoError(t, err)
			_, err = s.Recv()
			must.ErrorIs(t, err, io.EOF)
			time.Sleep(time.Hour)
		}, false},
		{"heartbeats", func(s *watchedStream, w watcher) {
			for range 20 {
				go func() { time.Sleep(10 * time.Second); w.messages <- heartbeat }()
				_, _ = s.Recv()
			}
		}, false},
		{"input is unread", func(s *watchedStream, w watcher) {
			go func() { w.messages <- heartbeat; w.messages <- stdin }()
			_, _ = s.Recv()
			time.Sleep(time.Hour)
			_, _ = s.Recv()
		}, false},
		{"heartbeats that stop", func(s *watchedStream, w watcher) {
			go func() { w.messages <- heartbeat; w.messages <- stdin; time.Sleep(time.Hour); w.messages <- stdin }()
			for range 3 {
				_, _ = s.Recv()
			}
		}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatcher(t)
				gone := false
				row.act(&watchedStream{ExecTaskStream: w, patience: watcherPatience, gone: func() { gone = true }}, w)
				synctest.Wait()
				must.Eq(t, row.gone, gone)
			})
		})
	}
}

// Commands in a task have a bound, which frees itself.
func TestExecSessionsAreBounded(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		e = e.with(func(c *config.Config) { c.MaxExecSessions = 3 })
		cfg := e.quietTask(defaultTaskConfig("sleep", "1000"))
		e.start(cfg)
		results := make(chan error)
		for range 12 {
			go func() {
				_, err := e.harness.ExecTask(cfg.ID, []string{"sh", "-c", "while [ ! -e /local/over ]; do sleep 0.05; done"}, time.Minute)
				results <- err
			}()
		}
		for range 9 {
			must.ErrorContains(t, <-results, "max_exec_sessions of this node's operator is 3")
		}
		result, err := e.harness.ExecTask(cfg.ID, []string{"true"}, time.Minute)
		must.ErrorContains(t, err, "has 3 commands running", must.Sprint(result))
		must.ErrorContains(t, e.driver.ExecTaskStreamingRaw(t.Context(), cfg.ID, []string{"true"}, false, newWatcher(t)), "has 3 commands running")
		must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "over"), nil, 0o644))
		for range 3 {
			must.NoError(t, <-results)
		}
		_, err = e.harness.ExecTask(cfg.ID, []string{"true"}, time.Minute)
		must.NoError(t, err)
	})
}
