// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	task "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestProcessesOfAContainerAreToldByTheirCommandLine(t *testing.T) {
	r := &Runtime{config: Config{Namespace: "ns", Socket: "/run/c.sock"}}
	for line, want := range map[string]string{
		"/usr/bin/containerd-shim-runc-v2 -namespace ns -id a -address /run/c.sock":        "a",
		"/usr/bin/containerd-shim-runc-v2 -namespace ns -id a -address /run/c.sock start":  "a",
		"/usr/bin/containerd-shim-runc-v2 -namespace ns -id a -address /run/c.sock delete": "",
		"/usr/bin/containerd-shim-runc-v2 -namespace ns -address /run/c.sock -id":          "",
		"/usr/bin/containerd-shim-runc-v2 -namespace ns -id a -address /run/d.sock":        "",
		"/usr/bin/containerd-shim-runc-v2 -namespace nt -id a -address /run/c.sock":        "",
		"/usr/bin/other -namespace ns -id a -address /run/c.sock":                          "",
		"": "",
	} {
		must.Eq(t, want, r.shimFor(strings.Split(line, " ")), must.Sprint(line))
	}
	must.Eq(t, "", r.shimFor(nil), must.Sprint("a process that has ended has no command line"))
	for line, want := range map[string]bool{
		"runc --root /run/containerd/runc/ns --log l create --bundle /b/a --pid-file p a": true,
		"runc --root /run/containerd/runc/nt --log l create --bundle /b/a --pid-file p a": false,
		"runc --root /run/containerd/runc/ns --log l create --bundle /b/b --pid-file p a": false,
		"runc --root /run/containerd/runc/ns --log l create --bundle /b/b --pid-file p b": false,
		"runc --root /run/containerd/runc/ns --log l delete a":                            false,
		"runc --root /run/containerd/runc/ns --log l start --bundle /b/a a":               false,
		"runc --root /run/containerd/runc/ns --log l create --bundle /b/a --pid-file p b": false,
		"a": false,
		"":  false,
	} {
		must.Eq(t, want, r.creates(strings.Split(line, " "), "a"), must.Sprint(line))
	}
}

func TestErrorsThatPass(t *testing.T) {
	const refused = "failed to start shim: start failed: dial unix /run/containerd/s/1: connect: connection refused"
	for text, want := range map[string]bool{
		"failed to create shim task: ttrpc: closed":            true,
		"failed to start shim: start failed: : signal: killed": true,
		refused: true,
		"failed to start shim: start failed: failed to write bootstrap.json: failed to rename \"/s/a/367\" to \"/s/a/bootstrap.json\": no such file or directory": true,
		"OCI runtime create failed: failed to write bootstrap.json":                                false,
		"OCI runtime create failed: hook: dial tcp: connection refused":                            false,
		"failed to start shim: failed to resolve runtime path: runtime \"x\" binary not installed": false,
		"failed to rename: rename /a/snapshots/new-1 /a/snapshots/53: file exists":                 true,
		"failed to rename: rename /a/snapshots/new-1 /a/snapshots/53: directory not empty":         true,
		"failed to rename: rename /a/snapshots/new-1 /a/snapshots/53: no space left on device":     false,
		"open /x: file exists": false,
	} {
		must.Eq(t, want, Transient(lostShim(errors.New(text))), must.Sprint(text))
	}
	for _, err := range []error{errShimLost, errdefs.ErrUnavailable, context.DeadlineExceeded, status.Error(codes.Unavailable, "away")} {
		must.True(t, Transient(fmt.Errorf("x: %w", err)))
	}
	must.False(t, Transient(errdefs.ErrNotFound))
	must.False(t, Transient(nil))
	must.NoError(t, lostShim(nil))
	away := errors.Join(errors.New(refused), errdefs.ErrUnavailable)
	must.False(t, errors.Is(lostShim(away), errShimLost))
	must.True(t, Transient(away))
}

func TestOptionsOfACommandLine(t *testing.T) {
	for line, want := range map[string]string{"-id a": "a", "x -id a": "a", "x y": "", "x -id": "", "-id": "", "x -id a b": "a"} {
		must.Eq(t, want, option(strings.Split(line, " "), "-id"), must.Sprint(line))
	}
}

// shim answers waits as a shim of containerd 1 does.
type shim struct {
	task.TTRPCTaskService // any other call is a mistake of the test
	ended                 time.Time
}

func (s shim) Wait(_ context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	if r.ID != "there" {
		return nil, errgrpc.ToGRPC(fmt.Errorf("container %s: %w", r.ID, errdefs.ErrNotFound))
	}
	return &task.WaitResponse{ExitStatus: 7, ExitedAt: timestamppb.New(s.ended)}, nil
}

// The shim knows how a process ended while containerd is away; what it does not know is an
// error, not an end.
func TestAShimTellsHowAProcessEnded(t *testing.T) {
	ended := time.Unix(1700000000, 5).UTC()
	socket := filepath.Join(t.TempDir(), "shim")
	closed := serveShim(t, socket, ended)
	for name, row := range map[string]struct {
		id, socket string
		want       Exit
		says       string
	}{
		"it has ended":       {id: "there", socket: socket, want: Exit{Code: 7, At: ended}},
		"it is not known":    {id: "another", socket: socket, says: "wait for container another at its shim: "},
		"the shim has ended": {id: "there", socket: socket + "-gone", says: "wait for container there at its shim: dial"},
	} {
		t.Run(name, func(t *testing.T) {
			exit, err := (&Container{ID: row.id}).waitAtShim(t.Context(), row.socket)
			if exit != row.want || (err == nil) != (row.says == "") || err != nil && !strings.HasPrefix(err.Error(), row.says) {
				t.Errorf("it ended with %+v, %v", exit, err)
			}
		})
	}
	<-closed // as the other one
	<-closed
}

// serveShim answers in the place of a shim until the test ends, and tells of each connection
// that is closed.
func serveShim(t *testing.T, socket string, ended time.Time) (closed <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	must.NoError(t, err)
	server, err := ttrpc.NewServer()
	must.NoError(t, err)
	task.RegisterTTRPCTaskService(server, shim{ended: ended})
	served, over := make(chan error, 1), make(chan struct{}, 10)
	go func() { served <- server.Serve(context.Background(), toldListener{l, over}) }()
	t.Cleanup(func() {
		must.NoError(t, server.Close())
		must.ErrorIs(t, <-served, ttrpc.ErrServerClosed)
	})
	return over
}

// toldListener tells when a client has closed a connection.
type toldListener struct {
	net.Listener
	closed chan<- struct{}
}

func (l toldListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return toldConn{conn, l.closed}, err
}

type toldConn struct {
	net.Conn
	closed chan<- struct{}
}

func (c toldConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		c.closed <- struct{}{}
	}
	return n, err
}

// TestASocketIsKnownByEachOfItsPaths: a shim may have been told another than the driver.
func TestASocketIsKnownByEachOfItsPaths(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"one", "other"} {
		must.NoError(t, os.WriteFile(at(name), nil, 0o600))
	}
	must.NoError(t, os.Symlink("one", at("link")))
	for _, row := range []struct {
		a, b string
		same bool
	}{{"one", "one", true}, {"one", "link", true}, {"link", "one", true}, {"one", "other", false}, {"one", "none", false}, {"none", "one", false}, {"none", "gone", false}, {"none", "none", true}} {
		must.Eq(t, row.same, sameFile(at(row.a), at(row.b)), must.Sprint(row.a, row.b))
	}
}
