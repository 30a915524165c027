// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
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
	nomad "github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
)

// Whom Nomad says no to is not decided for; what is no submission, or asks for no GPU, is
// Nomad's own to judge.
func TestNothingIsDecidedForWhoMayNotSubmit(t *testing.T) {
	for name, row := range map[string]struct {
		path, body string
		token      string
		status     int
		decided    bool
	}{
		"a registration":                             {"/v1/jobs", gpuJob("a", oneGPU), "", 403, false},
		"a registration in another's name":           {"/v1/jobs", strings.Replace(gpuJob("a", oneGPU), `{`, `{"SecretID": "other", `, 1), "", 403, false},
		"a plan":                                     {"/v1/job/a/plan", gpuJob("a", oneGPU), "", 403, false},
		"a validation":                               {"/v1/validate/job", gpuJob("a", oneGPU), "", 200, true},
		"a job without GPUs":                         {"/v1/jobs", gpuJob("a", "{}"), "", 200, false},
		"a registration by one who may":              {"/v1/jobs", gpuJob("a", oneGPU), goodToken, 200, true},
		"a registration by one who may do only that": {"/v1/jobs", gpuJob("a", oneGPU), registerToken, 200, true},
		"a token that is sent with the job":          {"/v1/jobs", strings.Replace(gpuJob("a", oneGPU), `{`, `{"SecretID": "`+goodToken+`", `, 1), "", 200, true},
		"a token in the header of a request":         {"/v1/job/a/plan", gpuJob("a", oneGPU), goodToken, 200, true},
		// Nomad cannot be asked about these: no header holds them.
		"a token of two lines":   {"/v1/jobs", strings.Replace(gpuJob("a", oneGPU), `{`, `{"SecretID": "a\nb", `, 1), "", 403, false},
		"a token of 2 MB":        {"/v1/jobs", strings.Replace(gpuJob("a", oneGPU), `{`, `{"SecretID": "`+strings.Repeat("a", 2<<20)+`", `, 1), "", 403, false},
		"a namespace of 2 MB":    {"/v1/jobs", strings.Replace(gpuJob("a", oneGPU), `"ID"`, `"Namespace":"`+strings.Repeat("a", 2<<20)+`","ID"`, 1), "", 403, false},
		"one of 129 for a query": {"/v1/jobs?namespace=" + strings.Repeat("a", 129), gpuJob("a", oneGPU), goodToken, 403, false},
		"one of 128 for a query": {"/v1/jobs?namespace=" + strings.Repeat("a", 128), gpuJob("a", oneGPU), goodToken, 200, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, func(c *Config) {
				c.Limits.MaxBodyBytes = 8 << 20
				c.Denied = gateOf(t)
			})
			status, answer := s.do(t, "PUT", row.path, row.body, "X-Nomad-Token", row.token)
			if status != row.status || (status == 403) != strings.Contains(answer, `may not submit jobs in namespace "`) || len(answer) > 1000 {
				t.Errorf("%d %.1000s", status, answer)
			}
			if decided := s.decider.asked != nil; decided != row.decided {
				t.Errorf("decided: %t", decided)
			}
			if status == 403 && s.nomad.last().method != "" {
				t.Errorf("Nomad got %+v", s.nomad.last())
			}
		})
	}
}

// gateOf is the gate of a Nomad that lets goodToken submit, and registerToken register.
func gateOf(t *testing.T) func(ctx context.Context, token, namespace string) bool {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch {
		case forbids(r, nil):
			http.Error(w, "Permission denied", http.StatusForbidden)
		case neverRegisters(body):
			http.Error(w, "Enforcing job modify index 18446744073709551615: job does not exist", http.StatusInternalServerError)
		default:
			fmt.Fprint(w, "{}")
		}
	}))
	t.Cleanup(upstream.Close)
	gate, err := rest.NewNomadGate(nomad.Config{Address: upstream.URL, HttpClient: upstream.Client()})
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, token, namespace string) bool {
		return errors.Is(gate.MaySubmit(ctx, token, namespace), rest.ErrDenied)
	}
}

// slowDecider notes how much of its time a decision has left, and gives up.
type slowDecider struct{ left time.Duration }

func (d *slowDecider) Decide(ctx context.Context, _ []admit.Ask, _ bool) ([]admit.Decision, error) {
	until, _ := ctx.Deadline()
	d.left = time.Until(until)
	return nil, context.DeadlineExceeded
}

func (*slowDecider) Settle(context.Context, []admit.Ask, []admit.Decision, bool) {}

func (*slowDecider) Unchanged([]admit.Ask, uint64) {}

// A Nomad that is slow to say whether a caller may submit takes the time from the decision.
func TestTheGatesTimeIsTheDecisions(t *testing.T) {
	for name, path := range map[string]string{"a registration": "/v1/jobs", "a plan": "/v1/job/a/plan"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				decider, asked := &slowDecider{}, time.Duration(0)
				s, err := New(Config{Nomad: &url.URL{Scheme: "http", Host: "nomad"}, Decider: decider, Limits: testLimits, Logger: hclog.NewNullLogger(),
					Denied: func(ctx context.Context, _, _ string) bool {
						until, _ := ctx.Deadline()
						asked = time.Until(until)
						time.Sleep(20 * time.Second)
						return false
					}})
				if err != nil {
					t.Fatal(err)
				}
				w := httptest.NewRecorder()
				s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "PUT", path, strings.NewReader(gpuJob("a", oneGPU))))
				if w.Code != http.StatusServiceUnavailable || asked != time.Minute || decider.left != 40*time.Second {
					t.Errorf("answer %d; the gate had %s, the decision %s", w.Code, asked, decider.left)
				}
			})
		})
	}
}
