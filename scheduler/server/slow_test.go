package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
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
// service also has POST /api/slow, which answers ten minutes after it read the body.
func inBubble(t *testing.T, test func(t *testing.T, client net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		toNomad, toService := newPipes(), newPipes()
		nomad := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				panic(http.ErrAbortHandler)
			}
		})}
		go nomad.Serve(toNomad) //nolint:errcheck // it is closed at the end
		s, err := New(Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: &fakeDecider{}, Limits: testLimits, Logger: hclog.NewNullLogger()})
		if err != nil {
			t.Fatal(err)
		}
		s.proxy.transport.DialContext = toNomad.dial
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
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, client net.Conn) {
				began := time.Now()
				send(t, client, tc.sends)
				in := bufio.NewReader(client)
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
