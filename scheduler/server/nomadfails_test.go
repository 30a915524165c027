// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// directly has a handler answer in place of Nomad, without a network. The call that is named by
// breaks, from 1, is answered by fails.
type directly struct {
	nomad  http.Handler
	fails  func(*http.Request) (*http.Response, error)
	breaks int
	calls  int
}

func (d *directly) RoundTrip(r *http.Request) (*http.Response, error) {
	if d.calls++; d.calls == d.breaks {
		return d.fails(r)
	}
	w := httptest.NewRecorder()
	d.nomad.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

// beside is a proxy to what answers in place of Nomad.
func beside(t *testing.T, nomad http.RoundTripper, change func(*Config)) (*proxy, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	c := Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: &fakeDecider{}, Limits: testLimits, Region: "global",
		Logger: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Trace})}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.proxy.transport.RegisterProtocol("http", nomad)
	return s.proxy, log
}

// Whatever call to Nomad gets no answer, half of one or a failure: the request is refused, and Nomad
// starts nothing that was not decided about.
func TestNoCallToNomadFailsUnnoticed(t *testing.T) {
	status := func(status int, text string) func(*http.Request) (*http.Response, error) {
		return func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
		}
	}
	const more = `{"Count":2,"Target":{"Group":"g"},"JobModifyIndex":7}`
	parent := strings.Replace(registeredJob("", 0), `"Count":0`, `"Count":1`, 1)
	for what, row := range map[string]struct{ path, body, job string }{
		"a registration":         {"/v1/jobs", gpuJob("a", oneGPU), parent},
		"one that keeps counts":  {"/v1/jobs", strings.Replace(gpuJob("a", oneGPU), `{`, `{"PreserveCounts":true,`, 1), parent},
		"one that is refused":    {"/v1/jobs", gpuJob("a", `{"gpu":"1","gpu_queue":"never"}`), parent},
		"a plan that is refused": {"/v1/job/a/plan", gpuJob("a", `{"gpu":"1","gpu_queue":"never"}`), parent},
		"a scaling":              {"/v1/job/a/scale", more, registeredJob("", 0)},
		"one that is held":       {"/v1/job/a/scale", more, registeredJob("full", 0)},
		"a revert":               {"/v1/job/a/revert", `{"JobID":"a","JobVersion":0}`, parent},
		"a dispatch":             {"/v1/job/a/dispatch", `{}`, parent},
	} {
		for how, fails := range map[string]func(*http.Request) (*http.Response, error){
			"no answer": func(*http.Request) (*http.Response, error) { return nil, errors.New("it is gone") },
			"half an answer": func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF))), Request: r}, nil
			},
			"a failure": status(500, "no cluster leader"),
		} {
			t.Run(what+"/"+how, func(t *testing.T) {
				for at, calls := 0, 1; at <= calls; at++ {
					nomad := &fakeNomad{jobs: map[string]string{}, evalID: "e"}
					nomad.stores(row.job)
					nomad.jobs["/v1/job/a/versions"] = `{"Versions":[` + strings.Replace(row.job, `{`, `{"Version":0,`, 1) + `]}`
					to := &directly{nomad: nomad, fails: fails, breaks: at}
					decider := &deciding{}
					p, _ := beside(t, to, func(c *Config) {
						c.Decider = decider
						c.Hold = func(context.Context, string, string, string, admit.Hold) error { return nil }
					})
					if strings.Contains(row.body, "never") {
						decider.err = &admit.Refusal{Status: 422, Text: "secret of the cluster"}
					}
					w := httptest.NewRecorder()
					p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, row.path, strings.NewReader(row.body)))
					if at == 0 {
						calls = to.calls
						continue
					}
					// Where the job cannot be read once more, Nomad itself compares its index. The answer
					// to a revert or a dispatch goes through as it comes.
					last := w.Code == http.StatusOK && at > 1 && (what == "one that is held" || strings.HasPrefix(what, "a dispatch") || what == "a revert")
					if started := nomad.carriedOut(); !last && (w.Code < 400 || strings.Contains(w.Body.String(), "secret") != (w.Code == 422)) {
						t.Errorf("call %d of %d: %d %s, and Nomad carries out %v", at, calls, w.Code, w.Body, started)
					}
					if settled := decider.settled; len(settled) > 0 && settled[0] == (w.Code == 500) {
						t.Errorf("call %d of %d: %d, settled %v", at, calls, w.Code, settled)
					}
				}
			})
		}
	}
}

// A request to Nomad that changes nothing is made of what the caller sent, and of nothing where that
// cannot be read.
func TestAttemptsChangeNothing(t *testing.T) {
	const bound = `"EnforceIndex":true,"Job":{},"JobModifyIndex":18446744073709551615`
	for name, row := range map[string]struct {
		kind       routeKind
		body, sent string
		refused    int
	}{
		"a registration":                 {registered, `{"Job":{}}`, `{` + bound + `}`, 0},
		"one that is bound":              {registered, `{"Job":{},"EnforceIndex":true,"JobModifyIndex":7}`, `{` + bound + `}`, 0},
		"one in other letters":           {registered, `{"enforceindex":false,"Job":{},"jobmodifyindex":7}`, `{` + bound + `}`, 0},
		"a registration without an end":  {registered, `{"Job":`, "", 0},
		"a plan":                         {planned, `{"Job":{}}`, "", 0},
		"a scaling that cannot be read":  {scaled, `{"Count":"2"}`, "", http.StatusBadRequest},
		"a revert that cannot be read":   {reverted, `{"JobVersion":"2"}`, "", http.StatusBadRequest},
		"a dispatch, whatever it is for": {dispatched, `{"Meta":{"a":"b"}}`, `{}`, 0},
		"a force":                        {forced, `x`, `{}`, 0},
	} {
		to := &directly{nomad: &fakeNomad{jobs: map[string]string{}}}
		p, _ := beside(t, to, nil)
		s := &submission{r: httptest.NewRequest(http.MethodPut, "/", nil), route: route{kind: row.kind, jobID: "a"}, body: []byte(row.body)}
		err := p.attempt(t.Context(), s)
		var refusal *admit.Refusal
		if errors.As(err, &refusal) != (row.refused != 0) || refusal != nil && refusal.Status != row.refused || row.refused == 0 && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		nomad := to.nomad.(*fakeNomad)
		if got := nomad.last().body; got != row.sent || len(nomad.carriedOut()) > 0 && row.kind != scaled {
			t.Errorf("%s: Nomad was sent %s, want %s", name, got, row.sent)
		}
	}
}

// Nomad refuses from status 300 on: what is answered so was not taken, and nothing follows it.
func TestFromWhichStatusNomadRefuses(t *testing.T) {
	for status, takes := range map[int]bool{200: true, 299: true, 300: false, 301: false, 500: false} {
		answers := &directly{nomad: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, `{"DispatchedJobID":"a/dispatch-1","JobID":"a/periodic-1"}`)
		})}
		decider := &fakeDecider{}
		p, _ := beside(t, answers, func(c *Config) { c.Decider = decider })
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/v1/jobs", strings.NewReader(gpuJob("a", oneGPU))))
		if len(decider.settled) != 1 || decider.settled[0] != takes {
			t.Errorf("%d to a registration: settled %v", status, decider.settled)
		}
		s := &submission{r: httptest.NewRequest(http.MethodPut, "/", nil), route: route{kind: reverted, jobID: "a"}, body: []byte("{}")}
		if err := p.attempt(t.Context(), s); (err == nil) != takes {
			t.Errorf("%d to an attempt: %v", status, err)
		}
	}
}

// Only a client that went away gets no answer; what gets none from Nomad, or from the leader, is in
// the log.
func TestWhoGetsNoAnswer(t *testing.T) {
	for name, row := range map[string]struct {
		err          error
		nomad, peers int
		logged       string
	}{
		"the client is gone": {fmt.Errorf("x: %w", context.Canceled), 200, 200, "client went away"},
		"the server is gone": {errors.New("refused"), 502, 503, "no answer from "},
		"the client is slow": {fmt.Errorf("x: %w", errSlow), 408, 503, ""},
	} {
		p, log := beside(t, nil, nil)
		for of, answer := range map[string]func(http.ResponseWriter, *http.Request, error){"Nomad": p.unreachable, "the leading replica": p.leaderless} {
			log.Reset()
			w := httptest.NewRecorder()
			answer(w, httptest.NewRequest(http.MethodPut, "/v1/jobs", http.NoBody), row.err)
			want := map[string]int{"Nomad": row.nomad, "the leading replica": row.peers}[of]
			if w.Code != want || (w.Body.Len() > 0) != (want != 200) || (w.Header().Get("Retry-After") != "") != (want == 503) {
				t.Errorf("%s: %s: %d %s", name, of, w.Code, w.Body)
			}
			if !strings.Contains(log.String(), row.logged) || row.logged == "no answer from " && !strings.Contains(log.String(), row.logged+of) {
				t.Errorf("%s: %s: logged %q", name, of, log)
			}
		}
	}
}

// What cannot be asked is not.
func TestARequestThatCannotBeMade(t *testing.T) {
	p, _ := beside(t, nil, nil)
	if got, err := p.nomadDo(t.Context(), "A METHOD", "/v1/jobs", "", nil); err == nil {
		t.Errorf("got %+v", got)
	}
}

// Half an answer is none, also where the half could be read; a child that cannot be stopped is not said
// to be taken back.
func TestWhatNomadDoesNotSayIsNotBelieved(t *testing.T) {
	half := func(r *http.Request) (*http.Response, error) {
		body := io.MultiReader(strings.NewReader(`{"DispatchedJobID":"a/dispatch-1"}`), iotest.ErrReader(io.ErrUnexpectedEOF))
		return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(body), Request: r}, nil
	}
	p, _ := beside(t, &directly{fails: half, breaks: 1}, nil)
	if got, err := p.nomadGet(t.Context(), "/v1/job/a", ""); err == nil {
		t.Errorf("half an answer is %+v", got)
	}
}

// Who gives up waiting for a turn has nothing done: nothing is scaled.
func TestATurnOfARequestThatDoesNotCome(t *testing.T) {
	for turn, request := range map[string]struct{ path, body string }{
		"default\x00a": {"/v1/job/a/scale", `{"Count":2,"Target":{"Group":"g"}}`},
	} {
		nomad := &fakeNomad{jobs: map[string]string{}}
		nomad.stores(strings.Replace(storedJob("a", ""), `"Count":1`, `"Count":0`, 1))
		held := 0
		p, _ := beside(t, &directly{nomad: nomad}, func(c *Config) {
			c.Limits.DecideTimeout = 50 * time.Millisecond
			c.Hold = func(context.Context, string, string, string, admit.Hold) error { held++; return nil }
		})
		done, err := p.turns.take(t.Context(), turn)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, request.path, strings.NewReader(request.body)))
		if started := nomad.carriedOut(); w.Code != http.StatusServiceUnavailable || len(started) > 0 || held > 0 {
			t.Errorf("%q: %d %s; held %d, and Nomad carries out %v", turn, w.Code, w.Body, held, started)
		}
		done()
	}
}

// A version that is not there is refused in Nomad's words, be it the first.
func TestAVersionThatIsNotThere(t *testing.T) {
	for _, version := range []string{"0", "9"} {
		s := newService(t, nil)
		s.nomad.jobs["/v1/job/a/versions"] = `{"Versions":[]}`
		if status, said := s.do(t, http.MethodPut, "/v1/job/a/revert", `{"JobID":"a","JobVersion":`+version+`}`); status != 500 || said != `job "a" at version `+version+` not found` {
			t.Errorf("version %s: %d %s", version, status, said)
		}
	}
}
