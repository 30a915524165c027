// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// A refusal is text, whatever stands in it: it may quote what a job says.
func TestRefusalsAreText(t *testing.T) {
	const page = "<html><script>alert(1)</script>"
	isText := func(what string, h http.Header, text string) {
		t.Helper()
		if got := h.Get("Content-Type"); got != "text/plain; charset=utf-8" || !strings.Contains(text, page) {
			t.Errorf("%s: %q as %s", what, text, got)
		}
	}
	p, _ := beside(t, nil, nil)
	w := httptest.NewRecorder()
	p.refuse(&submission{w: w, r: httptest.NewRequest(http.MethodPut, "/v1/jobs", nil), route: route{kind: registered}}, &admit.Refusal{Status: 422, Text: page})
	if isText("a refusal", w.Header(), w.Body.String()); w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Error("a browser may take a refusal for something else")
	}
	w = httptest.NewRecorder()
	(&nomadRefusal{answer{500, []byte(page)}}).write(w)
	isText("Nomad's own", w.Header(), w.Body.String())
}

// The reason of a refusal is for those who may read the job; whether it is the service's own fault is
// for all, and for its log.
func TestWhoseFaultARefusalIs(t *testing.T) {
	for status, ours := range map[int]bool{400: false, 499: false, 500: true, 503: true} {
		p, log := beside(t, nil, nil)
		s := &submission{w: httptest.NewRecorder(), r: httptest.NewRequest(http.MethodPut, "/v1/job/a/scale", nil), route: route{kind: scaled, jobID: "a"}, blind: true}
		refusal := &admit.Refusal{Status: status, Text: "secret of the cluster"}
		if got := s.plain(refusal).Text; strings.Contains(got, "cannot decide now") != ours || strings.Contains(got, `job "a"`) == ours || strings.Contains(got, "secret") {
			t.Errorf("%d: %s", status, got)
		}
		if p.refuse(s, refusal); strings.Contains(log.String(), "admission failed") != ours {
			t.Errorf("%d: logged %s", status, log)
		}
	}
}

// Of a refusal that is the service's own fault Nomad is not asked whether the caller may submit.
func TestWhenNomadIsAskedAboutARefusal(t *testing.T) {
	for status, asked := range map[int]bool{422: true, 499: true, 500: false, 503: false} {
		s := newService(t, func(c *Config) { c.Decider = &deciding{err: &admit.Refusal{Status: status, Text: "no"}} })
		s.do(t, http.MethodPut, "/v1/jobs", gpuJob("a", oneGPU))
		if got := s.nomad.last().path != ""; got != asked {
			t.Errorf("%d: Nomad was asked: %v", status, got)
		}
	}
}

// A job that ends before its end is refused, and Nomad hears nothing of it.
func TestHalfAJobIsNone(t *testing.T) {
	to := &directly{nomad: &fakeNomad{jobs: map[string]string{}}}
	p, _ := beside(t, to, nil)
	w := httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/v1/jobs", &closes{Reader: strings.NewReader(gpuJob("a", oneGPU)), fails: io.ErrUnexpectedEOF}))
	if w.Code != http.StatusRequestTimeout || to.calls > 0 {
		t.Errorf("%d %s, after %d calls to Nomad", w.Code, w.Body, to.calls)
	}
}

// Who is told to come again is told when.
func TestWhoFindsNoLeaderIsToldWhenToComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for takeover, want := range map[time.Duration]string{0: "5", 35500 * time.Millisecond: "36"} { // as long as the lock may last
			p, _ := beside(t, nil, func(c *Config) { c.Leadership, c.Takeover = leads{}, takeover })
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/v1/jobs", strings.NewReader(gpuJob("a", oneGPU))))
			if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != want || !strings.Contains(w.Body.String(), "try again in "+want+" seconds") {
				t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
			}
		}
	})
}

// What is about a job of another region goes to Nomad as it came, though it is not judged here.
func TestWhatIsOfAnotherRegionGoesToNomad(t *testing.T) {
	s := newService(t, func(c *Config) { c.Region = "here" })
	status, said := s.do(t, http.MethodPut, "/v1/job/a/scale?region=there", `{"Count":3,"Target":{"Group":"g"}}`)
	if last := s.nomad.last(); status != 200 || last.query != "region=there" || last.body != `{"Count":3,"Target":{"Group":"g"}}` {
		t.Errorf("%d %s: Nomad got %+v", status, said, last)
	}
}

// What is no path of Nomad's, such as that of its start page, goes to Nomad too, unless a handler of
// the service's own is there.
func TestWhatElseIsAskedForGoesToNomad(t *testing.T) {
	to := &directly{nomad: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "Nomad has ", r.URL.Path) })}
	s, err := New(Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: &fakeDecider{}, Limits: testLimits, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	s.proxy.transport.RegisterProtocol("http", to)
	s.Handle("GET /gpu/", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the page") }))
	for path, want := range map[string]string{"/": "Nomad has /", "/favicon.ico": "Nomad has /favicon.ico", "/ui": "Nomad has /ui", "/gpu/": "the page"} {
		w := httptest.NewRecorder()
		if s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil)); w.Body.String() != want {
			t.Errorf("GET %s: %s", path, w.Body)
		}
	}
}

// A job that comes in pieces goes on in one, whose length is told.
func TestAJobGoesOnInOnePiece(t *testing.T) {
	var length int64
	var encoding []string
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		length, encoding = r.ContentLength, r.TransferEncoding
		fmt.Fprint(w, "{}")
	}))
	defer upstream.Close()
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, func(c *Config) { c.Nomad = address })
	const job = `{"Job":{"ID":"a"}}`
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.http.URL+"/v1/jobs", io.MultiReader(strings.NewReader(job[:9]), strings.NewReader(job[9:])))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if length != int64(len(job)) || len(encoding) > 0 {
		t.Errorf("%d bytes of %d come, as %v", length, len(job), encoding)
	}
}

// parts notes what is written to it, and takes no more than some parts.
type parts struct {
	*deadlines
	sizes []int
	takes int
}

func (p *parts) Write(text []byte) (int, error) {
	if len(p.sizes) == p.takes {
		return 1, errors.New("the client is gone")
	}
	p.sizes = append(p.sizes, len(text))
	return p.deadlines.Write(text)
}

// All of an answer is written, in parts, each with its time limit; how much was written where its
// client leaves is told.
func TestAnAnswerIsWrittenInParts(t *testing.T) {
	for _, row := range []struct {
		size, takes, parts, written int
		fails                       bool
	}{
		{0, 9, 1, 0, false}, {1, 9, 1, 1, false}, {answerPart, 9, 1, answerPart, false}, {answerPart + 1, 9, 2, answerPart + 1, false},
		{3 * answerPart, 9, 3, 3 * answerPart, false}, {3 * answerPart, 1, 1, answerPart + 1, true},
	} {
		client := &parts{deadlines: &deadlines{ResponseRecorder: httptest.NewRecorder()}, takes: row.takes}
		text := bytes.Repeat([]byte("x"), row.size)
		n, err := newTimedAnswer(client, httptest.NewRequest(http.MethodGet, "/api/a", nil)).Write(text)
		if n != row.written || (err != nil) != row.fails || len(client.sizes) != row.parts || client.writes != max(row.parts, 1)+map[bool]int{true: 1}[row.fails] {
			t.Errorf("%d bytes: %d are written in parts of %v with %d limits, %v", row.size, n, client.sizes, client.writes, err)
		}
		if !row.fails && !bytes.Equal(client.Body.Bytes(), text) {
			t.Errorf("%d bytes: %d arrive", row.size, client.Body.Len())
		}
	}
}

// Also an answer without a text has a time limit, and what has no body has none for reading one.
func TestWhatHasATimeLimit(t *testing.T) {
	for name, body := range map[string]io.ReadCloser{"no body": http.NoBody, "none at all": nil} {
		client := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequest(http.MethodGet, "/api/a", nil)
		r.Body = body
		patient(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(client, r)
		if client.writes != 1 || len(client.set) > 0 {
			t.Errorf("%s: %d limits for writing, and %v for reading", name, client.writes, client.set)
		}
	}
}

// A body that is read, or closed, has no deadline any more.
func TestTheDeadlineEndsWithTheBody(t *testing.T) {
	for name, ends := range map[string]func(*timedBody){
		"read":   func(b *timedBody) { _, _ = io.Copy(io.Discard, b) },
		"closed": func(b *timedBody) { _ = b.Close() },
	} {
		client := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		b := &timedBody{ReadCloser: io.NopCloser(strings.NewReader("body")), control: http.NewResponseController(client)}
		b.limit(time.Now())
		if ends(b); len(client.set) < 2 || !client.set[len(client.set)-1].IsZero() || client.set[0].IsZero() {
			t.Errorf("%s: %v", name, client.set)
		}
	}
}

// A request is late where its body is: whatever else fails is not.
func TestWhatIsLate(t *testing.T) {
	plain := httptest.NewRequest(http.MethodPut, "/", nil)
	with := func(deadline int64) *http.Request {
		body := &timedBody{}
		body.deadline.Store(deadline)
		return plain.WithContext(context.WithValue(plain.Context(), bodyKey{}, body))
	}
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().UnixNano()
		for name, row := range map[string]struct {
			r    *http.Request
			err  error
			want bool
		}{
			"it says so":      {plain, fmt.Errorf("x: %w", errSlow), true},
			"no body":         {plain, io.EOF, false},
			"none is read":    {with(0), io.EOF, false},
			"it has time":     {with(now + 1), io.EOF, false},
			"its time is up":  {with(now), io.EOF, true},
			"and was long so": {with(now - 1), io.EOF, true},
		} {
			if got := late(row.r, row.err); got != row.want {
				t.Errorf("%s: %v", name, got)
			}
		}
	})
}

// What a handler of the service's own notes is completed with who asked. A log that cannot be written
// is told of, and only that.
func TestWhatAHandlerNotes(t *testing.T) {
	for name, out := range map[string]io.Writer{"it is written": io.Discard, "it cannot be": fails{errors.New("no space")}} {
		var noted []Record
		log := &bytes.Buffer{}
		audit := NewAudit(out)
		audit.Count = func(r Record) { noted = append(noted, r) }
		s, err := New(Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: &fakeDecider{}, Limits: testLimits, Audit: audit, Logger: hclog.New(&hclog.LoggerOptions{Output: log})})
		if err != nil {
			t.Fatal(err)
		}
		s.proxy.transport.RegisterProtocol("http", &directly{nomad: &fakeNomad{}})
		r := httptest.NewRequest(http.MethodPost, "/api/v1/gpu/allocate", nil)
		r.TLS = &tls.ConnectionState{} // with no certificate of the client's
		s.Note(r, goodToken, Record{Action: "reserve", Outcome: "done"})
		if len(noted) != 1 || noted[0].Action != "reserve" || noted[0].At.IsZero() || noted[0].Remote != r.RemoteAddr || noted[0].Caller.Name != "alice" || noted[0].Certificate != "" {
			t.Errorf("%s: %+v", name, noted)
		}
		if told := strings.Contains(log.String(), "audit log is not written"); told != (name == "it cannot be") {
			t.Errorf("%s: logged %s", name, log)
		}
	}
}

// The child of a dispatch has the priority that the dispatch says, unless Nomad refuses to read it,
// and starts at once.
func TestWhatAChildIs(t *testing.T) {
	for name, row := range map[string]struct {
		body     string
		payload  bool
		priority int
	}{
		"it says none":          {`{}`, false, 50},
		"it says one":           {`{"Priority":70}`, false, 70},
		"it cannot be read":     {`{"Priority":70,"Meta":5}`, false, 50},
		"a payload says naught": {`{"Priority":70}`, true, 50},
	} {
		job := &admit.Job{Asks: []admit.Ask{{Priority: 50, Later: true}, {Priority: 50, Later: true}}}
		if err := becomeChild(job, &submission{route: route{kind: dispatched, payload: row.payload}, body: []byte(row.body)}); err != nil {
			t.Fatal(err)
		}
		for _, a := range job.Asks {
			if a.Later || a.Priority != row.priority {
				t.Errorf("%s: %+v", name, a)
			}
		}
	}
}
