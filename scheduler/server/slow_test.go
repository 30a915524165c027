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
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// pipes is a listener in memory, whose connections know a bubble's clock.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{accept: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return pipeAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.accept <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// inBubble runs a test against a service and a Nomad that are reached in memory. The
// service also has POST /api/slow, which answers ten minutes after it read the body, GET
// /api/hello, which reads none, GET /api/long, which answers much, and POST /api/type, which
// refuses it at its first byte. It takes one submission a second.
func inBubble(t *testing.T, test func(t *testing.T, client net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		toNomad, toService := newPipes(), newPipes()
		nomad := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				panic(http.ErrAbortHandler)
			}
		})}
		go nomad.Serve(toNomad) //nolint:errcheck // it is closed at the end
		limits := testLimits
		limits.JobsPerSecond, limits.JobsBurst = 1, 1
		s, err := New(Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: &fakeDecider{}, Limits: limits, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		s.proxy.transport.DialContext = toNomad.dial
		s.Handle("GET /api/hello", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
		s.Handle("GET /api/long", http.HandlerFunc(long))
		s.Handle("POST /api/type", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := r.Body.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			http.Error(w, "not JSON", http.StatusUnsupportedMediaType)
		}))
		s.Handle("POST /api/slow", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				http.Error(w, err.Error(), http.StatusRequestTimeout)
				return
			}
			select {
			case <-time.After(10 * time.Minute):
			case <-r.Context().Done():
				http.Error(w, "given up", http.StatusServiceUnavailable)
			}
		}))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, toService) }()
		client, err := toService.dial(ctx, "", "")
		if err != nil {
			t.Fatal(err)
		}
		test(t, client)
		client.Close()
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		nomad.Close()
	})
}

// longAnswer is how long the answers of long are.
const longAnswer = 4 * answerPart

func long(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", fmt.Sprint(longAnswer))
	_, _ = w.Write(make([]byte, longAnswer)) // it fails where the client does not read
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// A client that begins a request and does not go on with it is given up, wherever the
// request goes.
func TestSlowClientsAreGivenUp(t *testing.T) {
	const stalls = " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
	const whole = "PUT /v1/validate/job HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
	for name, tc := range map[string]struct {
		sends  string
		status int // 0: the connection is closed without an answer
		within time.Duration
	}{
		"nothing":          {"", 0, headerTimeout},
		"half the headers": {"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n", 0, headerTimeout},
		"half a job":       {"PUT /v1/jobs" + stalls, http.StatusRequestTimeout, bodyTimeout},
		"half a scaling":   {"PUT /v1/job/a/scale" + stalls, http.StatusRequestTimeout, bodyTimeout},
		"half a variable":  {"PUT /v1/var/a" + stalls, http.StatusRequestTimeout, bodyTimeout},
		"half a call":      {"POST /api/slow" + stalls, http.StatusRequestTimeout, bodyTimeout},
		// What no handler reads, the server reads before it answers.
		"half of what nobody asked for": {"GET /api/hello" + stalls, http.StatusOK, bodyTimeout},
		"half of what is refused":       {"POST /api/type" + stalls, http.StatusUnsupportedMediaType, bodyTimeout},
		"half a job above the rate":     {"PUT /v1/jobs" + stalls, http.StatusTooManyRequests, bodyTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, client net.Conn) {
				began, in := time.Now(), bufio.NewReader(client)
				if tc.status == http.StatusTooManyRequests { // after a first one
					send(t, client, whole)
					if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusOK || resp.ContentLength != 0 {
						t.Fatalf("answer %v, %v", resp, err)
					}
				}
				send(t, client, tc.sends)
				resp, err := http.ReadResponse(in, nil)
				switch {
				case tc.status == 0 && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
					t.Errorf("answer %v, %v", resp, err)
				case tc.status != 0 && err != nil:
					t.Fatal(err)
				case tc.status != 0 && resp.StatusCode != tc.status:
					t.Errorf("answer %s, want %d", resp.Status, tc.status)
				}
				if _, err := io.Copy(io.Discard, in); err != nil { // until the connection is closed
					t.Error(err)
				}
				if took := time.Since(began); took > tc.within+time.Second {
					t.Errorf("it was given up after %s", took)
				}
			})
		})
	}
}

// A body that keeps coming may take as long as it takes where it streams through, and a
// job may not. Between requests a client is given some time, and so is a slow answer.
func TestPatienceWithClients(t *testing.T) {
	drip := func(client net.Conn, head string) (*http.Response, error) {
		ended := make(chan struct{})
		defer func() { client.Close(); <-ended }()
		go func() {
			defer close(ended)
			_, err := io.WriteString(client, head+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n")
			for i := 0; err == nil && i < 20; i++ {
				time.Sleep(bodyTimeout / 3)
				_, err = io.WriteString(client, " ")
			}
		}()
		return http.ReadResponse(bufio.NewReader(client), nil)
	}
	for head, status := range map[string]int{"PUT /v1/var/a": http.StatusOK, "PUT /v1/jobs": http.StatusRequestTimeout, "POST /api/slow": http.StatusRequestTimeout} {
		t.Run(head, func(t *testing.T) {
			inBubble(t, func(t *testing.T, client net.Conn) {
				if resp, err := drip(client, head); err != nil || resp.StatusCode != status {
					t.Errorf("answer %v, %v, want %d", resp, err, status)
				}
			})
		})
	}
	t.Run("idle", func(t *testing.T) {
		inBubble(t, func(t *testing.T, client net.Conn) {
			in := bufio.NewReader(client)
			send(t, client, "POST /api/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
			resp, err := http.ReadResponse(in, nil)
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatalf("answer %v, %v", resp, err)
			}
			began := time.Now()
			if n, err := io.Copy(io.Discard, in); n != 0 || err != nil || time.Since(began) != idleTimeout {
				t.Errorf("an idle connection is closed after %s, %v", time.Since(began), err)
			}
		})
	})
}

// An answer that its client does not read stays no longer than answerTimeout for each part. A
// slow reader gets all of it.
func TestUnreadAnswersAreGivenUp(t *testing.T) {
	for name, row := range map[string]struct {
		path  string
		pause time.Duration // before each part is read
		whole bool
	}{
		"not read at all":          {"/api/long", time.Hour, false},
		"read too slowly":          {"/api/long", answerTimeout + time.Second, false},
		"read slowly":              {"/api/long", answerTimeout / 3, true},
		"short, and read late":     {"/api/hello", answerTimeout - time.Second, true},
		"short, and read too late": {"/api/hello", answerTimeout + time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, client net.Conn) {
				send(t, client, "GET "+row.path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
				read, part := 0, make([]byte, answerPart)
				var err error
				for n := 0; err == nil; read += n {
					time.Sleep(row.pause)
					n, err = io.ReadFull(client, part)
				}
				whole := read >= longAnswer || row.path == "/api/hello" && read > 0
				if whole != row.whole {
					t.Errorf("%d bytes are read, then %v", read, err)
				}
			})
		})
	}
}

// deadlines is a client whose connection notes the deadlines that it is given.
type deadlines struct {
	*httptest.ResponseRecorder
	set    []time.Time // for reading
	writes int         // how many were set for writing
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

func (d *deadlines) SetWriteDeadline(time.Time) error {
	d.writes++
	return nil
}

// What streams through from Nomad, such as events, waits for its client.
func TestOnlyWholeAnswersHaveATimeLimit(t *testing.T) {
	for path, limited := range map[string]bool{"/v1/event/stream": false, "/v1/jobs?index=5": false, "/v1/client/allocation/a/exec": false, "/api/status": true} {
		client := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		patient(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })).
			ServeHTTP(client, httptest.NewRequestWithContext(t.Context(), "GET", path, http.NoBody))
		if got := client.writes > 0; got != limited {
			t.Errorf("GET %s: limited %v", path, got)
		}
	}
}

// lateBody is a body that comes when it is told to.
type lateBody struct{ began, comes chan struct{} }

func (b lateBody) Read([]byte) (int, error) {
	close(b.began)
	<-b.comes
	return 0, io.EOF
}

func (lateBody) Close() error { return nil }

// A proxy's transport may read when the proxy has returned: the deadlines are those of the
// next request then.
func TestALateReadLeavesTheNextDeadline(t *testing.T) {
	body, read := lateBody{make(chan struct{}), make(chan struct{})}, make(chan struct{})
	client := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	patient(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		go func() {
			defer close(read)
			_, _ = r.Body.Read(make([]byte, 1))
			_ = r.Body.Close()
		}()
		<-body.began
	})).ServeHTTP(client, httptest.NewRequestWithContext(t.Context(), "PUT", "/v1/var/a", body))
	before := slices.Clone(client.set)
	close(body.comes)
	<-read
	if len(before) == 0 || !slices.Equal(client.set, before) {
		t.Errorf("deadlines %v, and after the handler %v", before, client.set)
	}
}
