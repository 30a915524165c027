// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/internal/testca"
)

// serve starts a server in memory, whose Nomad has answers of its own.
func serve(t *testing.T, ctx context.Context, l net.Listener, nomad http.RoundTripper) <-chan error {
	t.Helper()
	s, err := New(Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: &fakeDecider{}, Limits: testLimits, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	s.proxy.transport.RegisterProtocol("http", nomad)
	s.Handle("GET /api/hello", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	return done
}

// endless is a Nomad whose answers begin, and have no end before their client leaves.
type endless struct{}

func (endless) RoundTrip(r *http.Request) (*http.Response, error) {
	body, more := io.Pipe()
	go func() {
		_, _ = io.WriteString(more, "event\n")
		<-r.Context().Done()
		more.CloseWithError(r.Context().Err())
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: body, ContentLength: -1, Request: r}, nil
}

// A server that is to end does so at once where nothing is under way, and ends streams, which have no
// end, after some seconds.
func TestAServerEnds(t *testing.T) {
	for path, after := range map[string]time.Duration{"/api/hello": 0, "/v1/event/stream": shutdownTimeout} {
		synctest.Test(t, func(t *testing.T) {
			l := newPipes()
			ctx, end := context.WithCancel(t.Context())
			done := serve(t, ctx, l, endless{})
			client, err := l.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			send(t, client, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(client), nil)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("%+v, %v", resp, err)
			}
			if after == 0 {
				_, _ = io.Copy(io.Discard, resp.Body)
			}
			began := time.Now()
			end()
			if err := <-done; err != nil || time.Since(began).Round(time.Second) != after {
				t.Errorf("%s: it ends after %s, %v", path, time.Since(began), err)
			}
			client.Close()
		})
	}
}

// noListener is a listener that takes no connection.
type noListener struct{ err error }

func (l noListener) Accept() (net.Conn, error) { return nil, l.err }
func (noListener) Close() error                { return nil }
func (noListener) Addr() net.Addr              { return pipeAddr{} }

// A server that cannot serve says why.
func TestAServerThatCannotServeSaysWhy(t *testing.T) {
	broken := errors.New("it is broken")
	if err := <-serve(t, t.Context(), noListener{broken}, endless{}); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// A server that ends leaves no idle connection to Nomad.
func TestAServerThatEndsLeavesNomad(t *testing.T) {
	closed := make(chan struct{})
	upstream := httptest.NewUnstartedServer(&fakeNomad{})
	upstream.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			close(closed)
		}
	}
	upstream.Start()
	defer upstream.Close()
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Nomad: address, Decider: &fakeDecider{}, Limits: testLimits, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	s.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/v1/nodes", nil))
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := s.Serve(ctx, newPipes()); err != nil {
		t.Error(err)
	}
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("its connection to Nomad is open")
	}
}

// halfOpen is a connection of which one direction can be closed.
type halfOpen struct {
	net.Conn
	err error
}

func (h halfOpen) CloseWrite() error { return h.err }

// One direction of a connection can be closed where the connection can that.
func TestOneDirectionIsClosed(t *testing.T) {
	broken := errors.New("it is broken")
	for name, row := range map[string]struct {
		conn net.Conn
		want error
	}{"it can": {halfOpen{}, nil}, "it fails": {halfOpen{err: broken}, broken}, "it cannot": {from{}, errors.ErrUnsupported}} {
		if err := (&counted{Conn: row.conn}).CloseWrite(); !errors.Is(err, row.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Bounds of one are bounds, and nothing is remembered of a client that has closed its last connection.
func TestTheLeastBounds(t *testing.T) {
	for _, limits := range []Limits{{ConnectionsPerClient: 1}, {Connections: 1}} {
		b := newBounded(nil, limits, nil)
		if first, second := b.take("a"), b.take("a"); first != "" || second == "" {
			t.Errorf("%+v: %q, %q", limits, first, second)
		}
		b.refused(BoundAll) // which no one counts
		if b.release("a"); b.open != 0 || len(b.clients) != 0 {
			t.Errorf("%+v: %d are open, of %v", limits, b.open, b.clients)
		}
	}
}

// Files that are not there, or that belong to no others, are told of on both sides.
func TestTLSFilesThatCannotBeUsed(t *testing.T) {
	good := files(testca.New(t), "x")
	for name, f := range map[string]TLSFiles{
		"a certificate alone":   {CertFile: good.CertFile},
		"a key alone":           {KeyFile: good.KeyFile},
		"no such certificate":   {CertFile: "missing", KeyFile: good.KeyFile},
		"no such authority":     {CertFile: good.CertFile, KeyFile: good.KeyFile, CAFile: "missing"},
		"what is no authority":  {CertFile: good.CertFile, KeyFile: good.KeyFile, CAFile: "tls_test.go"},
		"the one for the other": {CertFile: good.KeyFile, KeyFile: good.CertFile},
	} {
		server, serverErr := ServerTLS(f)
		client, clientErr := ClientTLS(f)
		if serverErr == nil || clientErr == nil || server != nil || client != nil {
			t.Errorf("%s: a server gets %v, a client %v", name, serverErr, clientErr)
		}
	}
}

// A log file that cannot be opened is told of.
func TestALogFileThatCannotBeOpened(t *testing.T) {
	if l, err := OpenLogFile(filepath.Join(t.TempDir(), "missing", "audit.json")); err == nil || l != nil {
		t.Errorf("got %v, %v", l, err)
	}
}

// successors lead one after the other, the first for the first question alone.
type successors struct{ asked chan string }

func (*successors) Secret() string { return "of the leader" }

func (s *successors) Leader() (string, bool) {
	select {
	case first := <-s.asked:
		return first, false
	default:
		return "http://second", false
	}
}

// Who has waited for a place goes to whoever leads by then, whichever replica that is.
func TestWhoWaitsGoesToAnotherReplicaThatLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits
		limits.ConnectionsPerClient = 2
		var came []string
		leader := &directly{nomad: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			came = append(came, r.URL.Host)
			fmt.Fprint(w, "{}")
		})}
		who := &successors{make(chan string, 1)}
		who.asked <- "http://first"
		p, _ := follower(t, limits, who, leader)
		p.handing <- struct{}{} // the only place
		answers := submits(p, 1)
		synctest.Wait()
		p.handing.leave()
		if w := <-answers; w.Code != http.StatusOK || strings.Join(came, " ") != "second" {
			t.Errorf("%d %s: %v were sent it", w.Code, w.Body, came)
		}
	})
}

// A leader that cannot be reached keeps no place.
func TestALeaderThatIsGoneKeepsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits
		limits.ConnectionsPerClient = 4
		gone := &directly{fails: func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}, breaks: 1}
		gone.nomad = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") })
		p, _ := follower(t, limits, &elected{}, gone)
		if w := <-submits(p, 1); w.Code != http.StatusOK || gone.calls != 2 || len(p.handing) != 0 {
			t.Errorf("%d %s after %d attempts, and %d places are taken", w.Code, w.Body, gone.calls, len(p.handing))
		}
	})
}
