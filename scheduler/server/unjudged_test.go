// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// starting are the requests that have Nomad start more than runs, of job a, whose queue is full.
var starting = map[string]struct{ path, body string }{
	"a registration":         {"/v1/jobs", gpuJob("a", `{"gpu":"1","gpu_queue":"full"}`)},
	"a registration by ID":   {"/v1/job/a", gpuJob("a", `{"gpu":"1","gpu_queue":"full"}`)},
	"a scaling":              {"/v1/job/a/scale", `{"Count":2,"Target":{"Group":"g"}}`},
	"a dispatch":             {"/v1/job/a/dispatch", `{}`},
	"a dispatch's payload":   {"/v1/job/a/dispatch/payload", `anything`},
	"a revert":               {"/v1/job/a/revert", `{"JobID":"a","JobVersion":0}`},
	"a revert of a held one": {"/v1/job/a/revert", `{"JobID":"a","JobVersion":1}`},
	"a force":                {"/v1/job/a/periodic/force", ``},
}

// stores registers job a with a fake Nomad.
func (f *fakeNomad) stores(job string) {
	f.jobs["/v1/job/a"] = job
	f.jobs["/v1/job/a/versions"] = `{"Versions":[` + job + `,` + strings.Replace(job, `"Version":0`, `"Version":1`, 1) + `]}`
}

// Nothing that Nomad would start reaches it where it cannot be judged, whatever fails.
func TestNothingStartsUnjudged(t *testing.T) {
	failing := func(err error) func(*Config) { return func(c *Config) { c.Decider = &deciding{err: err} } }
	hidden := func(f *fakeNomad) { f.acl = true }
	broken := func(job string) func(*fakeNomad) { return func(f *fakeNomad) { f.stores(job) } }
	for name, row := range map[string]struct {
		change func(*Config)
		nomad  func(*fakeNomad)
		token  string
		status int // of scalings, dispatches, reverts and forces; 404: Nomad's own words, with any status
		// submits is the status of registrations where it is another: their job is in them.
		submits int
	}{
		"the decider fails":                    {change: failing(errors.New("no view of the cluster")), status: 503},
		"the decider refuses for its own sake": {change: failing(&admit.Refusal{Status: 503, Text: "it is late"}), status: 503},
		"the decider is late":                  {change: failing(context.DeadlineExceeded), status: 503},
		"no replica leads":                     {change: func(c *Config) { c.Leadership, c.Limits.DecideTimeout = leads{}, 100*time.Millisecond }, status: 503},
		"Nomad has no leader":                  {nomad: func(f *fakeNomad) { f.reads = 500 }, status: 503, submits: 200},
		"the job cannot be read":               {nomad: broken(storedJob("a", `,"id":"b"`)), status: 400, submits: 200},
		"its request cannot be read":           {nomad: broken(strings.Replace(storedJob("a", ""), `"gpu":"1"`, `"gpu":"8GB"`, 1)), status: 400, submits: 200},
		"there is none":                        {nomad: func(f *fakeNomad) { clear(f.jobs) }, status: 404, submits: 200},
		"the token may not read it":            {nomad: hidden, token: startToken, status: 409, submits: 403},
		"nor may the service":                  {nomad: hidden, change: func(c *Config) { c.Token = func() (string, error) { return "", nil } }, token: startToken, status: 503, submits: 403},
		"nor has it a token now":               {nomad: hidden, change: func(c *Config) { c.Token = func() (string, error) { return "", errors.New("no such file") } }, token: startToken, status: 503, submits: 403},
		"nor has it one at all":                {nomad: hidden, change: func(c *Config) { c.Token = nil }, token: startToken, status: 503, submits: 403},
		"nor is there one":                     {nomad: func(f *fakeNomad) { f.acl = true; clear(f.jobs) }, token: startToken, status: 404, submits: 403},
		"the token may neither read nor do it": {nomad: hidden, token: "another", status: 403},
	} {
		for what, request := range starting {
			t.Run(name+"/"+what, func(t *testing.T) {
				s := newService(t, func(c *Config) {
					c.Token = func() (string, error) { return ownToken, nil }
					if row.change != nil {
						row.change(c)
					}
				})
				s.nomad.stores(storedJob("a", ""))
				if row.nomad != nil {
					row.nomad(s.nomad)
				}
				want, registers := row.status, !strings.Contains(request.path, "/job/a/")
				if registers {
					want = cmp.Or(row.submits, row.status)
				}
				status, said := s.do(t, http.MethodPut, request.path, request.body, "X-Nomad-Token", row.token)
				if status != want && (want != 404 || !strings.Contains(said, "not found")) {
					t.Errorf("%d %s, want %d", status, said, want)
				}
				if started := s.nomad.carriedOut(); !registers && len(started) > 0 {
					t.Errorf("%d, and Nomad carries out %v", status, started)
				}
			})
		}
	}
}

// silentNomad answers no read, and notes what it is to do.
type silentNomad struct{ wrote []string }

func (n *silentNomad) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if body, _ := io.ReadAll(r.Body); !bytes.Contains(body, []byte("18446744073709551615")) { // which changes nothing
		n.wrote = append(n.wrote, r.URL.Path)
	}
	return nil, errors.New("it does not get here")
}

// A Nomad that is slow to say what a job is, is not sent what would start more of it.
func TestNothingStartsWhileNomadIsSlow(t *testing.T) {
	for what, request := range starting {
		if !strings.Contains(request.path, "/job/a/") {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			s, err := New(Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: &fakeDecider{}, Limits: testLimits, Logger: hclog.NewNullLogger()})
			if err != nil {
				t.Fatal(err)
			}
			nomad := &silentNomad{}
			s.proxy.transport.RegisterProtocol("http", nomad)
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, request.path, strings.NewReader(request.body)))
			if w.Code != http.StatusServiceUnavailable || slices.Contains(nomad.wrote, request.path) {
				t.Errorf("%s: %d %s, and Nomad got %v", what, w.Code, w.Body, nomad.wrote)
			}
		})
	}
}

// Where fewer allocs are asked for, or none, nothing has to be judged: also of a job that cannot be.
func TestFewerNeedNoJudgment(t *testing.T) {
	for name, body := range map[string]string{
		"fewer":               `{"Count":0,"Target":{"Group":"g"}}`,
		"as many":             `{"Count":1,"Target":{"Group":"g"}}`,
		"an event":            `{"Message":"hello","Target":{"Group":"g"}}`,
		"of another group":    `{"Count":9,"Target":{"Group":"h"}}`,
		"what Nomad refuses":  `{"Count":"9","Target":{"Group":"g"}}`,
		"what Nomad refuses.": `{"Count":9,"Target":["g"]}`,
	} {
		s := newService(t, func(c *Config) { c.Decider = &deciding{err: errors.New("no view of the cluster")} })
		s.nomad.stores(strings.Replace(storedJob("a", ""), `"gpu":"1"`, `"gpu":"8GB"`, 1))
		if status, said := s.do(t, http.MethodPut, "/v1/job/a/scale", body); status != 200 || len(s.nomad.carriedOut()) != 1 {
			t.Errorf("%s: %d %s", name, status, said)
		}
	}
}

// What counts against whether a group grows is its own count.
func TestWhetherAGroupGrows(t *testing.T) {
	const job = `{"TaskGroups":[{"Name":"g","Count":2},{"Name":"none"}]}`
	for name, row := range map[string]struct {
		job, group string
		count      int64
		want       bool
	}{
		"more":             {job, "g", 3, true},
		"as many":          {job, "g", 2, false},
		"no count":         {job, "none", 1, true},
		"no such group":    {job, "h", 9, false},
		"what is no job":   {`[]`, "g", 1, true},
		"a group's oddity": {`{"TaskGroups":[{"Name":"g","Count":"2"}]}`, "g", 1, true},
	} {
		if got := grows([]byte(row.job), row.group, row.count); got != row.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// One who may start a job and not read it learns from a refusal, or from an answer, nothing of
// the job, of its queue and of the cluster. The audit log has it all.
func TestWhoMayNotReadAJobLearnsNothingOfIt(t *testing.T) {
	const secret = "secret of the cluster"
	hold := func(asks []admit.Ask) []admit.Decision {
		return []admit.Decision{{Group: asks[0].Group, Hold: &admit.Hold{Kind: "quota", Sentence: secret}}}
	}
	place := func(asks []admit.Ask) []admit.Decision {
		return []admit.Decision{{Group: asks[0].Group, Preferred: []string{secret}, Explanation: []string{secret}, Outcome: view.Placed}}
	}
	for name, row := range map[string]struct {
		decider *deciding
		status  int
	}{
		"there is no quota":    {&deciding{decisions: hold}, 409},
		"it can never be":      {&deciding{err: &admit.Refusal{Status: 422, Text: secret, Details: []string{secret}}}, 422},
		"its queue forbids it": {&deciding{err: &admit.Refusal{Status: 403, Text: secret}}, 403},
		"it cannot be decided": {&deciding{err: errors.New(secret)}, 503},
		"there is room":        {&deciding{decisions: place}, 200},
	} {
		for what, request := range starting {
			if !strings.Contains(request.path, "/job/a/") {
				continue
			}
			s := newService(t, func(c *Config) {
				c.Decider, c.Token = row.decider, func() (string, error) { return ownToken, nil }
			})
			s.nomad.acl = true
			s.nomad.stores(strings.Replace(storedJob("a", ""), `"gpu_queue":"full"`, `"gpu_queue":"secret"`, 1))
			status, said := s.do(t, http.MethodPut, request.path, request.body, "X-Nomad-Token", startToken)
			if status != row.status || strings.Contains(said, "secret") || strings.Contains(said, "GPU") {
				t.Errorf("%s, %s: %d %s", name, what, status, said)
			}
			if started := s.nomad.carriedOut(); (len(started) == 1) != (status == 200) {
				t.Errorf("%s, %s: Nomad carries out %v", name, what, started)
			}
			if log := s.audit.String(); !strings.Contains(log, secret) {
				t.Errorf("%s, %s: the audit log has %s", name, what, log)
			}
		}
	}
}
