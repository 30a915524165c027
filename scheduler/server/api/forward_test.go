// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// passing is the way to a leader that answers at once.
type passing struct {
	requests chan *http.Request // as they were asked
	body     string             // of the last
	answer   io.ReadCloser
}

func (p *passing) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	p.body = string(text)
	p.requests <- r
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: p.answer, ContentLength: -1, Request: r}, nil
}

func newFollower(t *testing.T, way http.RoundTripper) *bench {
	t.Helper()
	return newBench(t, func(c *Config) { c.Leadership, c.Forward = leadership{address: "http://leader"}, way })
}

func allocation(body io.Reader) *http.Request {
	r := httptest.NewRequest("POST", "/api/v1/gpu/allocate", body)
	r.Header.Set("Content-Type", "application/json")
	return r
}

// TestNoConnectionWaitsForABody: the leader is not asked before all of the body is there.
func TestNoConnectionWaitsForABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		way := &passing{requests: make(chan *http.Request, 1), answer: io.NopCloser(strings.NewReader("{}"))}
		body, client := io.Pipe()
		w, done := httptest.NewRecorder(), make(chan struct{})
		go func() {
			defer close(done)
			newFollower(t, way).ServeHTTP(w, allocation(body))
		}()
		const text = `{"gpu_count":1}`
		_, _ = client.Write([]byte(text[:1]))
		synctest.Wait()
		if len(way.requests) != 0 {
			t.Error("the leader is asked before the body has come")
		}
		_, _ = client.Write([]byte(text[1:]))
		_ = client.Close()
		<-done
		r := <-way.requests
		if w.Code != http.StatusOK || way.body != text || r.ContentLength != int64(len(text)) {
			t.Errorf("answered with %d; the leader got %q of length %d", w.Code, way.body, r.ContentLength)
		}
		again, err := r.GetBody()
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(again); string(got) != text {
			t.Errorf("on another connection the leader would get %q", got)
		}
	})
}

// TestBodiesArePassedOnWithinTheBound: one that the leader would refuse does not get there.
func TestBodiesArePassedOnWithinTheBound(t *testing.T) {
	for size, want := range map[int]int{maxBody: http.StatusOK, maxBody + 1: http.StatusRequestEntityTooLarge} {
		way := &passing{requests: make(chan *http.Request, 1), answer: io.NopCloser(strings.NewReader("{}"))}
		w := httptest.NewRecorder()
		newFollower(t, way).ServeHTTP(w, allocation(strings.NewReader(strings.Repeat(" ", size))))
		if asked := len(way.requests) == 1; w.Code != want || asked != (want == http.StatusOK) {
			t.Errorf("%d bytes: %d %s, and the leader was asked: %v", size, w.Code, w.Body, asked)
		}
	}
}

// TestNoOneWaitsForTheLeaderForEver: neither for its answer nor for a connection to it.
func TestNoOneWaitsForTheLeaderForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int32
		way := &http.Transport{MaxConnsPerHost: 1, DialContext: func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			near, far := net.Pipe()
			go func() {
				_, _ = io.Copy(io.Discard, far)
				_ = far.Close()
			}()
			return near, nil
		}}
		defer way.CloseIdleConnections()
		f, began := newFollower(t, way), time.Now()
		answers := make(chan *httptest.ResponseRecorder)
		ask := func() {
			go func() {
				w := httptest.NewRecorder()
				f.ServeHTTP(w, allocation(strings.NewReader(`{"gpu_count":1}`)))
				answers <- w
			}()
			synctest.Wait()
		}
		ask()
		ask()
		if dials.Load() != 1 {
			t.Fatalf("%d connections", dials.Load())
		}
		for range 2 {
			w := <-answers
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "within 1m0s; try again") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		if waited := time.Since(began); waited != forwardTimeout {
			t.Errorf("they waited for %s", waited)
		}
	})
}

// closing tells when a body is given back.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// stalled is a client that reads nothing of its answer until it is let go.
type stalled struct {
	*httptest.ResponseRecorder
	comes, reads chan struct{}
}

func (s stalled) Write(text []byte) (int, error) {
	s.comes <- struct{}{}
	<-s.reads
	return s.ResponseRecorder.Write(text)
}

// TestWhoDoesNotReadKeepsNoConnection: the leader's answer is read to its end before the
// client gets any of it.
func TestWhoDoesNotReadKeepsNoConnection(t *testing.T) {
	answer := &closing{Reader: strings.NewReader("{}")}
	way := &passing{requests: make(chan *http.Request, 1), answer: answer}
	w, done := stalled{httptest.NewRecorder(), make(chan struct{}, 1), make(chan struct{})}, make(chan struct{})
	go func() {
		defer close(done)
		newFollower(t, way).ServeHTTP(w, allocation(strings.NewReader(`{"gpu_count":1}`)))
	}()
	<-w.comes
	if !answer.closed {
		t.Error("the leader's answer waits for the client")
	}
	close(w.reads)
	<-done
	if w.Code != http.StatusOK || w.Body.String() != "{}" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}
