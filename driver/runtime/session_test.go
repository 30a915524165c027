// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1/stats"
	statsv2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/shoenig/test/must"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// session is an exec session, or a container's process, of which a test says how it goes.
type session struct {
	client.Task // any other method is a mistake of the test
	mu          sync.Mutex
	fails       map[string]error
	status      client.ProcessStatus
	exits       chan client.ExitStatus // is what Wait returns
	output      chan struct{}          // closed when all of it was copied
	did         []string
	contexts    []context.Context
	metric      *types.Metric
}

func newSession() *session {
	s := &session{fails: map[string]error{}, exits: make(chan client.ExitStatus, 1), output: make(chan struct{}), status: client.Stopped}
	close(s.output)
	return s
}

func (s *session) do(ctx context.Context, what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, what)
	s.contexts = append(s.contexts, ctx)
	return s.fails[what]
}

func (s *session) ID() string                      { return "id" }
func (s *session) IO() cio.IO                      { return copied{s.output} }
func (s *session) Start(ctx context.Context) error { return s.do(ctx, "start") }
func (s *session) Wait(ctx context.Context) (<-chan client.ExitStatus, error) {
	return s.exits, s.do(ctx, "wait")
}
func (s *session) CloseIO(ctx context.Context, _ ...client.IOCloserOpts) error {
	return s.do(ctx, "close stdin")
}
func (s *session) Resize(ctx context.Context, _, _ uint32) error { return s.do(ctx, "resize") }
func (s *session) Status(ctx context.Context) (client.Status, error) {
	return client.Status{Status: s.status}, s.do(ctx, "status")
}
func (s *session) Kill(ctx context.Context, signal syscall.Signal, _ ...client.KillOpts) error {
	return s.do(ctx, signal.String())
}
func (s *session) Delete(ctx context.Context, _ ...client.ProcessDeleteOpts) (*client.ExitStatus, error) {
	return nil, s.do(ctx, "delete")
}
func (s *session) Metrics(ctx context.Context) (*types.Metric, error) {
	return s.metric, s.do(ctx, "metrics")
}

type copied struct{ all chan struct{} }

func (c copied) Config() cio.Config { return cio.Config{} }
func (c copied) Cancel()            {}
func (c copied) Wait()              { <-c.all }
func (c copied) Close() error       { return nil }

// TestHowASessionEnds, and what it says of a call that fails.
func TestHowASessionEnds(t *testing.T) {
	ended := func(code uint32, err error) client.ExitStatus { return *client.NewExitStatus(code, time.Time{}, err) }
	for name, c := range map[string]struct {
		fails map[string]error
		exit  client.ExitStatus
		stdin string
		code  int
		says  string // that of the error; "" for none
	}{
		"it ends":                      {exit: ended(3, nil), code: 3},
		"nobody knows how":             {exit: ended(0, errFailed), says: "wait for exec in container box"},
		"it cannot be waited for":      {fails: map[string]error{"wait": errFailed}, says: "wait for exec in container box"},
		"it cannot start":              {fails: map[string]error{"start": errFailed}, says: `exec "sh" in container box`},
		"it cannot be removed":         {exit: ended(0, nil), fails: map[string]error{"delete": errFailed}, says: "end exec in container box"},
		"it is removed already":        {exit: ended(4, nil), fails: map[string]error{"delete": errdefs.ErrNotFound}, code: 4},
		"its status is not known":      {exit: ended(5, nil), fails: map[string]error{"status": errFailed}, code: 5},
		"it reads":                     {exit: ended(6, nil), stdin: "text", code: 6},
		"it is gone when stdin ends":   {exit: ended(7, nil), stdin: "text", fails: map[string]error{"close stdin": errdefs.ErrNotFound}, code: 7},
		"it has ended when stdin ends": {exit: ended(8, nil), stdin: "text", fails: map[string]error{"close stdin": errdefs.ErrFailedPrecondition}, code: 8},
		"stdin cannot be closed":       {stdin: "text", fails: map[string]error{"close stdin": errFailed}, says: "close stdin of exec in container box"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSession()
				s.fails = c.fails
				e := Exec{Command: []string{"sh"}}
				var stdin *signalledReader
				if c.stdin != "" {
					stdin = &signalledReader{reader: strings.NewReader(c.stdin), ended: make(chan struct{})}
					_, _ = io.ReadAll(stdin)
				}
				go func() {
					time.Sleep(time.Second)
					s.exits <- c.exit
				}()
				code, err := (&Container{ID: "box"}).runSession(t.Context(), s, e, stdin)
				time.Sleep(2 * time.Second)
				must.Eq(t, c.code, code)
				if c.says == "" {
					must.NoError(t, err)
				} else {
					must.ErrorIs(t, err, errFailed)
					must.ErrorContains(t, err, c.says)
				}
				closed := 0
				for i, what := range s.did {
					if what == "close stdin" {
						closed++
					}
					if _, timed := s.contexts[i].Deadline(); timed {
						must.Error(t, s.contexts[i].Err(), must.Sprint(what, "is over, and so is its context"))
					}
				}
				must.Eq(t, c.stdin != "", closed == 1)
				must.Eq(t, "delete", s.did[len(s.did)-1])
			})
		})
	}
}

// TestASessionGoesOnWithoutResizes once their channel is closed.
func TestASessionGoesOnWithoutResizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSession()
		s.fails["resize"] = errFailed // which is no reason to end it
		resize := make(chan Size, 1)
		resize <- Size{Width: 80, Height: 24}
		close(resize)
		go func() {
			time.Sleep(time.Second) // until then nothing goes on
			s.exits <- *client.NewExitStatus(9, time.Time{}, nil)
		}()
		code, err := (&Container{ID: "box"}).runSession(t.Context(), s, Exec{Command: []string{"sh"}, Resize: resize}, nil)
		must.NoError(t, err)
		must.Eq(t, 9, code)
		must.Eq(t, []string{"wait", "start", "resize", "status", "delete"}, s.did)
	})
}

// TestASessionWhoseCallerLeaves ends with the reason, whatever is heard first.
func TestASessionWhoseCallerLeaves(t *testing.T) {
	for range 30 {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := newSession()
		s.exits <- *client.NewExitStatus(0, time.Time{}, errFailed)
		_, err := (&Container{ID: "box"}).runSession(ctx, s, Exec{Command: []string{"sh"}}, nil)
		must.ErrorIs(t, err, context.Canceled)
		must.False(t, s.contexts[len(s.contexts)-1] == ctx, must.Sprint("it is removed all the same"))
	}
}

// TestASessionThatRunsIsKilled before it is removed.
func TestASessionThatRunsIsKilled(t *testing.T) {
	killed := []string{"status", "wait", "killed", "delete"}
	for name, c := range map[string]struct {
		fails map[string]error
		ends  bool
		did   []string
		err   error
	}{
		"it ends":                 {ends: true, did: killed},
		"it is gone":              {ends: true, fails: map[string]error{"killed": errdefs.ErrNotFound}, did: killed},
		"it cannot be killed":     {fails: map[string]error{"killed": errFailed}, did: killed[:3], err: errFailed},
		"it cannot be waited for": {fails: map[string]error{"wait": errFailed}, did: killed[:2], err: errFailed},
		"it goes on":              {did: killed[:3], err: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSession()
				s.status, s.fails = client.Running, c.fails
				if c.ends {
					s.exits <- client.ExitStatus{}
				}
				began := time.Now()
				err := (&Container{ID: "box"}).endSession(t.Context(), s)
				must.ErrorIs(t, err, c.err)
				if c.err != nil {
					must.ErrorContains(t, err, "end exec in container box")
				}
				must.Eq(t, c.did, s.did)
				if name == "it goes on" {
					must.Eq(t, 20*time.Second, time.Since(began))
				}
			})
		})
	}
}

// TestOutputIsWaitedFor as long as a process may still write, but not for good.
func TestOutputIsWaitedFor(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{0: 0, time.Second: time.Second, time.Hour: 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			s := newSession()
			s.output = make(chan struct{})
			s.exits <- client.ExitStatus{}
			go func() {
				time.Sleep(after)
				close(s.output)
			}()
			began := time.Now()
			_, err := (&Container{ID: "box"}).runSession(t.Context(), s, Exec{Command: []string{"sh"}}, nil)
			must.NoError(t, err)
			must.Eq(t, want, time.Since(began))
			time.Sleep(2 * time.Hour)
		})
	}
}

func TestMetricsAreOfOneOfTwoKinds(t *testing.T) {
	kindOf := func(of any) *anypb.Any {
		packed, err := typeurl.MarshalAnyToProto(of)
		must.NoError(t, err)
		return packed
	}
	for name, c := range map[string]struct {
		data  *anypb.Any
		fails error
		pids  uint64
		says  string
	}{
		"cgroup v1":    {data: kindOf(&stats.Metrics{Pids: &stats.PidsStat{Current: 3}}), pids: 3},
		"cgroup v2":    {data: kindOf(&statsv2.Metrics{Pids: &statsv2.PidsStat{Current: 4}}), pids: 4},
		"neither":      {data: kindOf(&emptypb.Empty{}), says: "metrics of container id are of unknown type"},
		"not known":    {data: &anypb.Any{TypeUrl: "none.such"}, says: "decode metrics of container id"},
		"not answered": {fails: errFailed, says: "read metrics of container id"},
	} {
		s := newSession()
		s.metric, s.fails["metrics"] = &types.Metric{Data: c.data}, c.fails
		m, err := metricsOf(t.Context(), s)
		if c.says != "" {
			must.ErrorContains(t, err, c.says, must.Sprint(name))
			continue
		}
		must.NoError(t, err, must.Sprint(name))
		must.Eq(t, c.pids, m.Pids)
		must.False(t, m.At.IsZero())
	}
}
