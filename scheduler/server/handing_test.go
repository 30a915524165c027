// SPDX-License-Identifier: MPL-2.0

package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
)

// slowLeader answers one request for each value of answer.
type slowLeader struct {
	answer    chan struct{}
	came, now atomic.Int32
}

func (l *slowLeader) RoundTrip(r *http.Request) (*http.Response, error) {
	l.came.Add(1)
	l.now.Add(1)
	defer l.now.Add(-1)
	<-l.answer
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}")), Request: r}, nil
}

// elected is who leads, which changes.
type elected struct{ self atomic.Bool }

func (*elected) Secret() string { return "of the leader" }

func (e *elected) Leader() (string, bool) {
	if e.self.Load() {
		return "http://self", true
	}
	return "http://leader", false
}

// follower is a replica beside a leader, both without a network.
func follower(t *testing.T, limits Limits, who Leadership, leader http.RoundTripper) (*proxy, *fakeDecider) {
	t.Helper()
	decider := &fakeDecider{}
	s, err := New(Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: decider, Limits: limits, Leadership: who, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	s.proxy.peers.RegisterProtocol("http", leader)
	nomad := &slowLeader{answer: make(chan struct{})}
	close(nomad.answer)
	s.proxy.transport.RegisterProtocol("http", nomad)
	return s.proxy, decider
}

// submits has so many jobs submitted at once. Each answer comes through the channel.
func submits(p *proxy, jobs int) <-chan *httptest.ResponseRecorder {
	answers := make(chan *httptest.ResponseRecorder, jobs)
	for range jobs {
		go func() {
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/v1/jobs", strings.NewReader(gpuJob("a", oneGPU))))
			answers <- w
		}()
	}
	return answers
}

// TestHandedOverAreBounded: at the replica that leads another one is a client like others. It
// hands over half as many submissions at once as a client may have connections; the others
// wait, and are told so where their time is over.
func TestHandedOverAreBounded(t *testing.T) {
	for connections, atOnce := range map[int]int{1: 1, 2: 1, 5: 2, 0: 6} {
		synctest.Test(t, func(t *testing.T) {
			limits := testLimits
			limits.ConnectionsPerClient = connections
			leader := &slowLeader{answer: make(chan struct{})}
			p, _ := follower(t, limits, &elected{}, leader)
			answers := submits(p, 6)
			synctest.Wait()
			if got := int(leader.came.Load()); got != atOnce {
				t.Errorf("of %d connections: %d submissions are handed over, want %d", connections, got, atOnce)
			}
			leader.answer <- struct{}{}
			if w := <-answers; w.Code != http.StatusOK {
				t.Errorf("the first is answered with %d", w.Code)
			}
			synctest.Wait()
			if came, now := int(leader.came.Load()), int(leader.now.Load()); came != min(6, atOnce+1) || now != min(5, atOnce) {
				t.Errorf("of %d connections: after one answer %d were handed over, and %d are there", connections, came, now)
			}
			waiting := 6 - int(leader.came.Load())
			time.Sleep(limits.DecideTimeout)
			for range waiting {
				w := <-answers
				if text := w.Body.String(); w.Code != http.StatusServiceUnavailable || !strings.Contains(text, "hands over no more at once; try again") || w.Header().Get("Retry-After") == "" {
					t.Errorf("one that waited in vain is told %d %q", w.Code, text)
				}
			}
			close(leader.answer)
			for range 5 - waiting {
				if w := <-answers; w.Code != http.StatusOK {
					t.Errorf("one that the leader took is answered with %d", w.Code)
				}
			}
		})
	}
}

// TestWhoWaitsGoesToTheNextLeader: who leads may have changed by the time that there is a place.
func TestWhoWaitsGoesToTheNextLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := testLimits
		limits.ConnectionsPerClient = 2
		leader, who := &slowLeader{answer: make(chan struct{})}, &elected{}
		p, decider := follower(t, limits, who, leader)
		answers := submits(p, 2)
		synctest.Wait()
		who.self.Store(true)
		close(leader.answer)
		for range 2 {
			if w := <-answers; w.Code != http.StatusOK {
				t.Errorf("answered with %d %s", w.Code, w.Body)
			}
		}
		if len(decider.asked) != 1 || leader.came.Load() != 1 {
			t.Errorf("%d are decided about here, and %d by the first leader, want 1 and 1", len(decider.asked), leader.came.Load())
		}
	})
}

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

// TestWhoDoesNotReadHoldsNoOneUp: a client that does not read its answer has its place with
// the replica that leads no more.
func TestWhoDoesNotReadHoldsNoOneUp(t *testing.T) {
	limits := testLimits
	limits.ConnectionsPerClient = 2
	leader := &slowLeader{answer: make(chan struct{})}
	close(leader.answer)
	p, _ := follower(t, limits, &elected{}, leader)
	first := stalled{httptest.NewRecorder(), make(chan struct{}, 1), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.ServeHTTP(first, httptest.NewRequest(http.MethodPut, "/v1/jobs", strings.NewReader(gpuJob("a", oneGPU))))
	}()
	<-first.comes
	if w := <-submits(p, 1); w.Code != http.StatusOK || w.Body.String() != "{}" {
		t.Errorf("another one is told %d %q", w.Code, w.Body)
	}
	close(first.reads)
	<-done
	if first.Code != http.StatusOK || first.Body.String() != "{}" || len(p.handing) != 0 {
		t.Errorf("who reads late is told %d %q, and %d places are taken", first.Code, first.Body, len(p.handing))
	}
}

// broken is an answer that ends before its end.
type broken struct{ err error }

func (b broken) RoundTrip(r *http.Request) (*http.Response, error) {
	body := io.MultiReader(strings.NewReader("{"), iotest.ErrReader(b.err))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(body), Request: r}, nil
}

// TestHalfAnAnswerOfTheLeaderIsNone: it is not passed on, and its place is given back.
func TestHalfAnAnswerOfTheLeaderIsNone(t *testing.T) {
	limits := testLimits
	limits.ConnectionsPerClient = 2
	p, _ := follower(t, limits, &elected{}, broken{io.ErrUnexpectedEOF})
	if w := <-submits(p, 1); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || len(p.handing) != 0 {
		t.Errorf("%d %s, and %d places are taken", w.Code, w.Body, len(p.handing))
	}
}

// still is a leader that takes submissions and gives no answer, as one that was stopped does:
// its kernel accepts connections.
type still struct{}

func (still) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// Regression: what was handed over to a leader that stood still was never answered, also when
// another replica led long since. One that works has decided and has Nomad's answer by then.
func TestALeaderThatStandsStillIsNotWaitedForForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := follower(t, testLimits, &elected{}, still{})
		began, answers := time.Now(), submits(p, 1)
		time.Sleep(dialer.Timeout + 2*testLimits.DecideTimeout - time.Second)
		synctest.Wait()
		select {
		case w := <-answers:
			t.Fatalf("after %s it was answered with %d %q, and a leader may take so long", time.Since(began), w.Code, w.Body)
		default:
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		select {
		case w := <-answers:
			if text := w.Body.String(); w.Code != http.StatusServiceUnavailable || !strings.Contains(text, "does not answer") || w.Header().Get("Retry-After") == "" {
				t.Errorf("it was told %d %q", w.Code, text)
			}
		default:
			t.Fatalf("it has no answer after %s", time.Since(began))
		}
		if len(p.handing) != 0 {
			t.Errorf("%d places are taken", len(p.handing))
		}
	})
}
