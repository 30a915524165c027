// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// deciding is a decider that answers as the test says.
type deciding struct {
	fakeDecider
	decisions func(asks []admit.Ask) []admit.Decision
	err       error
}

func (d *deciding) Decide(ctx context.Context, asks []admit.Ask, dry bool) ([]admit.Decision, error) {
	decisions, err := d.fakeDecider.Decide(ctx, asks, dry)
	switch {
	case d.err != nil:
		return nil, d.err
	case d.decisions != nil:
		return d.decisions(asks), nil
	}
	return decisions, err
}

// records are what the audit log has.
func (s *service) records(t *testing.T) (list []Record) {
	t.Helper()
	for line := range strings.Lines(s.audit.String()) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

// What comes of a submission is answered, settled and noted, each once: also where the decider
// fails, or what it decided cannot be written.
func TestWhatComesOfASubmission(t *testing.T) {
	blind := errors.New("no view of the cluster")
	refusal := func(status int) error {
		return &admit.Refusal{Status: status, Text: "it cannot be", Details: []string{"why"}}
	}
	const scale, revert = "/v1/job/a/scale", "/v1/job/a/revert"
	for name, row := range map[string]struct {
		path, body string
		decider    *deciding
		nomad      int // the status of Nomad's answer to writes; 0: it takes them
		status     int
		settled    []bool
		outcome    string // of the record; empty: there is none
		reaches    bool   // Nomad hears of it
	}{
		"it is taken":                     {"/v1/jobs", gpuJob("a", oneGPU), &deciding{}, 0, 200, []bool{true}, view.Placed, true},
		"Nomad refuses it":                {"/v1/jobs", gpuJob("a", oneGPU), &deciding{}, 500, 500, []bool{false}, "rejected", true},
		"a plan":                          {"/v1/job/a/plan", gpuJob("a", oneGPU), &deciding{}, 0, 200, nil, view.Placed, true},
		"the decider fails":               {"/v1/jobs", gpuJob("a", oneGPU), &deciding{err: blind}, 0, 503, nil, "refused", false},
		"it is refused":                   {"/v1/jobs", gpuJob("a", oneGPU), &deciding{err: refusal(422)}, 0, 422, nil, "refused", true}, // Nomad is asked whether the caller may
		"it cannot be written":            {"/v1/jobs", gpuJob("a", oneGPU), &deciding{decisions: func([]admit.Ask) []admit.Decision { return []admit.Decision{{Group: "another"}} }}, 0, 503, []bool{false}, "refused", false},
		"a validation is refused":         {"/v1/validate/job", gpuJob("a", oneGPU), &deciding{err: refusal(422)}, 0, 200, nil, "refused", true},
		"a validation cannot be":          {"/v1/validate/job", gpuJob("a", oneGPU), &deciding{err: blind}, 0, 503, nil, "refused", false},
		"a scaling is refused":            {scale, `{"Count":2,"Target":{"Group":"g"}}`, &deciding{err: refusal(499)}, 0, 499, nil, "refused", true},
		"a scaling cannot be judged":      {scale, `{"Count":2,"Target":{"Group":"g"}}`, &deciding{err: refusal(500)}, 0, 500, nil, "refused", true},
		"nor where the decider fails":     {scale, `{"Count":2,"Target":{"Group":"g"}}`, &deciding{err: blind}, 0, 503, nil, "refused", true},
		"a revert cannot be judged":       {revert, `{"JobID":"a","JobVersion":0}`, &deciding{err: blind}, 0, 503, nil, "refused", true},
		"a revert is refused":             {revert, `{"JobID":"a","JobVersion":0}`, &deciding{err: refusal(422)}, 0, 422, nil, "refused", true},
		"a job without GPUs is not noted": {"/v1/jobs", `{"Job":{"ID":"b"}}`, &deciding{}, 0, 200, nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, func(c *Config) { c.Decider = row.decider })
			s.nomad.status = row.nomad
			s.nomad.jobs["/v1/job/a"] = registeredJob("", 0)
			s.nomad.jobs["/v1/job/a/versions"] = `{"Versions":[{"Version":0,` + registeredJob("", 0)[1:] + `]}`
			status, said := s.do(t, "PUT", row.path, row.body)
			if status != row.status {
				t.Errorf("%d %s, want %d", status, said, row.status)
			}
			if !slices.Equal(row.decider.settled, row.settled) {
				t.Errorf("settled %v, want %v", row.decider.settled, row.settled)
			}
			var outcomes []string
			for _, r := range s.records(t) {
				outcomes = append(outcomes, r.Outcome)
			}
			if got := strings.Join(outcomes, " "); got != row.outcome {
				t.Errorf("noted %q, want %q", got, row.outcome)
			}
			if reached := s.nomad.last().path != ""; reached != row.reaches {
				t.Errorf("Nomad heard of it: %v", reached)
			}
		})
	}
}

// A job that Nomad may have got, for it gave no answer, keeps its decision.
func TestNoAnswerOfNomadIsNoRefusal(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	address, err := url.Parse(gone.URL)
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	s := newService(t, func(c *Config) { c.Nomad = address })
	if status, _ := s.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU)); status != http.StatusBadGateway || !slices.Equal(s.decider.settled, []bool{true}) {
		t.Errorf("%d, settled %v", status, s.decider.settled)
	}
	s.decider.most = 0
	refusing := newService(t, func(c *Config) {
		c.Nomad, c.Decider = address, &deciding{err: &admit.Refusal{Status: 422, Text: "secret of the cluster"}}
	})
	if status, said := refusing.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU)); status != http.StatusBadGateway || strings.Contains(said, "secret") {
		t.Errorf("a refusal to a caller of whom nothing is known: %d %s", status, said)
	}
}

// Who gives up waiting for the turn of a job has nothing decided; another job has a turn of its own,
// and a plan needs none.
func TestATurnThatDoesNotCome(t *testing.T) {
	upstream := httptest.NewServer(&fakeNomad{jobs: map[string]string{}})
	defer upstream.Close()
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	decider := &fakeDecider{}
	server, err := New(Config{Nomad: address, Decider: decider, Limits: testLimits, Region: "global", Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.proxy.close()
	done, err := server.proxy.turns.take(t.Context(), "default\x00a")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(ctx context.Context, path, id string) int {
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, httptest.NewRequest("PUT", path, strings.NewReader(gpuJob(id, oneGPU))).WithContext(ctx))
		return w.Code
	}
	over, giveUp := context.WithCancel(t.Context())
	giveUp()
	if got := ask(over, "/v1/jobs", "a"); got != http.StatusServiceUnavailable || decider.asked != nil {
		t.Errorf("its turn does not come: %d, decided about %v", got, decider.asked)
	}
	if got := ask(t.Context(), "/v1/jobs", "b"); got != http.StatusOK {
		t.Errorf("another job: %d", got)
	}
	if got := ask(t.Context(), "/v1/job/a/plan", "a"); got != http.StatusOK {
		t.Errorf("a plan: %d", got)
	}
	done()
	if got := ask(t.Context(), "/v1/jobs", "a"); got != http.StatusOK {
		t.Errorf("once it is over: %d", got)
	}
}

// What comes of a job is the worst of what comes of its groups, and nothing of it where Nomad
// refuses.
func TestOutcomesOfSeveralGroups(t *testing.T) {
	for _, row := range []struct {
		groups []string
		want   string
	}{
		{nil, view.Placed},
		{[]string{view.Placed}, view.Placed},
		{[]string{view.Placed, view.Registered}, view.Registered},
		{[]string{view.Registered, view.Waits, view.Placed}, view.Waits},
		{[]string{view.Waits, view.Placed, view.Held}, view.Held},
	} {
		var decisions []admit.Decision
		for _, outcome := range row.groups {
			decisions = append(decisions, admit.Decision{Outcome: outcome})
		}
		if got := Outcome(decisions); got != row.want {
			t.Errorf("%v: %s", row.groups, got)
		}
		for status, want := range map[int]string{200: row.want, 299: row.want, 300: "rejected", 500: "rejected"} {
			if got := outcomeOf(decisions, status); got.Outcome != want || got.Status != status {
				t.Errorf("%v, %d: %+v", row.groups, status, got)
			}
		}
	}
}

// A record says of each group what was asked for and decided, also of what was refused; and whose
// job it is.
func TestWhatARecordSays(t *testing.T) {
	held := &deciding{decisions: func(asks []admit.Ask) []admit.Decision {
		return []admit.Decision{{Group: "g", Preferred: []string{"n"}, Explanation: []string{"so"}, Outcome: view.Held, Hold: &admit.Hold{Kind: "quota", Sentence: "full"}, Tasks: []admit.TaskDecision{{Task: "t", Devices: []admit.Device{{Name: "nvidia/gpu", Count: 1}}}}}}
	}}
	refused := &deciding{err: &admit.Refusal{Status: 422, Text: "it cannot be"}}
	for _, d := range []*deciding{held, refused} {
		s := newService(t, func(c *Config) { c.Decider = d })
		s.do(t, "PUT", "/v1/jobs", gpuJob("a", `{"gpu":"1","gpu_queue":"q"}`), "X-Nomad-Token", goodToken)
		list := s.records(t)
		if len(list) != 1 || len(list[0].Groups) != 1 {
			t.Fatalf("noted %+v", list)
		}
		r, g := list[0], list[0].Groups[0]
		if r.Action != "register" || r.Namespace != "default" || r.JobID != "a" || r.At.IsZero() || r.Remote == "" || r.Caller.Name != "alice" || g.Group != "g" || g.Queue != "q" || g.Ask != "1" || g.Count != 1 {
			t.Errorf("noted %+v", r)
		}
		if d == refused {
			if r.Reason != "it cannot be" || r.Status != 422 || g.Hold != "" {
				t.Errorf("noted %+v", r)
			}
		} else if r.Reason != "" || g.Hold != "quota: full" || !slices.Equal(g.Preferred, []string{"n"}) || !slices.Equal(g.Why, []string{"so"}) || r.DecideMicros < 0 {
			t.Errorf("noted %+v", r)
		}
	}
}

// What the service does by itself is noted as what it is: done, or told alone.
func TestWhatTheServiceDidIsNoted(t *testing.T) {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.FixedZone("east", 3600))
	for kind, want := range map[string]string{"evict": "evict", "release": "let_go", "hold": "hold"} {
		for _, outcome := range []string{"dry_run", "done", "failed"} {
			var out bytes.Buffer
			if err := NewAudit(&out).Did(view.Event{At: at, Kind: kind, Namespace: "n", JobID: "j", AllocID: "a", For: "n/k", Text: "so", DryRun: outcome == "dry_run", Failed: outcome == "failed"}); err != nil {
				t.Fatal(err)
			}
			var r Record
			if err := json.Unmarshal(out.Bytes(), &r); err != nil {
				t.Fatal(err)
			}
			if r.Action != want || r.Outcome != outcome || !r.At.Equal(at) || r.At.Location() != time.UTC || r.Namespace != "n" || r.JobID != "j" || r.AllocID != "a" || r.For != "n/k" || r.Reason != "so" {
				t.Errorf("%s: %+v", kind, r)
			}
		}
	}
}

// The decider hears of a job that Nomad had already as it was submitted, and of no other one.
func TestWhatIsUnchangedIsKnown(t *testing.T) {
	for answer, want := range map[string]uint64{
		`{"JobModifyIndex":7,"EvalCreateIndex":9,"Index":9}`: 7,
		`{"JobModifyIndex":9,"EvalCreateIndex":9,"Index":9}`: 0,
		`{"JobModifyIndex":9,"EvalCreateIndex":0,"Index":9}`: 0,
		`{"EvalCreateIndex":9}`:                              0,
		`no JSON`:                                            0,
	} {
		for status, want := range map[int]uint64{200: want, 500: 0} {
			resp := &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(answer))}
			got := unchangedAt(resp)
			if left, err := io.ReadAll(resp.Body); got != want || string(left) != answer || err != nil {
				t.Errorf("%d %s: %d, and %q is left, %v", status, answer, got, left, err)
			}
		}
	}
	broken := errors.New("broken")
	resp := &http.Response{StatusCode: 200, Body: io.NopCloser(io.MultiReader(strings.NewReader("{"), failing{broken}))}
	got := unchangedAt(resp)
	if left, err := io.ReadAll(resp.Body); got != 0 || string(left) != "{" || !errors.Is(err, broken) {
		t.Errorf("%d, and %q is left, %v", got, left, err)
	}
}
