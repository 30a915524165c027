// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// registeredJob is a job as Nomad shows it, with a second group of the same gang where
// gangs is 2.
func registeredJob(queue string, gangs int) string {
	group := func(name string) string {
		gang := ""
		if gangs > 0 {
			gang = `,"gpu_gang":"true"`
		}
		return `{"Name":"` + name + `","Count":0,"Tasks":[{"Name":"t","Driver":"docker","Meta":{"gpu":"1","gpu_queue":"` + queue + `"` + gang + `}}]}`
	}
	groups := group("g")
	if gangs == 2 {
		groups += "," + group("h")
	}
	return `{"ID":"a","JobModifyIndex":7,"TaskGroups":[` + groups + `]}`
}

// What is scaled from zero and has to wait is held first, and scaled then. Nomad's own
// refusals come before all of it, and leave no hold behind.
func TestWhatIsScaledFromZeroWaits(t *testing.T) {
	for name, c := range map[string]struct {
		job, body, refuses string
		fails              error
		noHolder           bool
		status             int
		said, sent         string
		held               bool
		then               string // what replaces the index in the job once it is held
	}{
		"there is room":                   {job: registeredJob("", 0), body: `{"Count":2,"Target":{"Group":"g"}}`, status: 200, sent: `"Count":2`},
		"it has to wait":                  {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"}}`, status: 200, said: "waits for quota", sent: `"Count":2`, held: true},
		"bound to an index":               {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"},"JobModifyIndex":7}`, status: 200, sent: `"JobModifyIndex":7`, held: true},
		"the index is another then":       {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"},"JobModifyIndex":7}`, status: 200, sent: `"JobModifyIndex":8`, held: true, then: `"JobModifyIndex":8`},
		"the index is not known then":     {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"},"JobModifyIndex":7}`, status: 200, sent: `"JobModifyIndex":7`, held: true, then: `"JobModifyIndex":"?"`},
		"bound to another index":          {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"},"JobModifyIndex":6}`, status: 500, said: "Enforcing job modify index 6: job exists with conflicting job modify index: 7"},
		"bound to a later index":          {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"},"JobModifyIndex":8}`, status: 500, said: "conflicting job modify index: 7"},
		"it cannot be decoded":            {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"},"Message":5}`, status: 400, said: "the scaling"},
		"Nomad refuses":                   {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"}}`, refuses: "job scaling blocked due to active deployment", status: 400, said: "active deployment"},
		"Nomad refuses what can never be": {job: registeredJob("", 0), body: `{"Count":9,"Target":{"Group":"g"}}`, refuses: "group count was greater", status: 400, said: "group count was greater"},
		"it can never be":                 {job: registeredJob("", 0), body: `{"Count":9,"Target":{"Group":"g"}}`, status: 422, said: "no node has room"},
		"it cannot be held":               {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"}}`, fails: errors.New("changed by somebody else"), status: 503, said: "changed by somebody else", held: true},
		"nobody holds":                    {job: registeredJob("full", 0), body: `{"Count":2,"Target":{"Group":"g"}}`, noHolder: true, status: 409, said: "would wait for quota"},
		"a gang of one group":             {job: registeredJob("full", 1), body: `{"Count":2,"Target":{"Group":"g"}}`, status: 200, sent: `"Count":2`, held: true},
		"a gang of two groups":            {job: registeredJob("full", 2), body: `{"Count":2,"Target":{"Group":"g"}}`, status: 200, sent: `"Count":2`, held: true},
		"the rest of its gang runs":       {job: strings.Replace(registeredJob("full", 2), `"Name":"h","Count":0`, `"Name":"h","Count":1`, 1), body: `{"Count":2,"Target":{"Group":"g"}}`, status: 409, said: "would wait for quota"},
	} {
		t.Run(name, func(t *testing.T) {
			held := ""
			var s *service
			hold := func(_ context.Context, namespace, id, group string, h admit.Hold) error {
				held = namespace + "/" + id + "/" + group + " " + h.Kind
				s.nomad.mu.Lock()
				defer s.nomad.mu.Unlock()
				if c.then != "" {
					s.nomad.jobs["/v1/job/a"] = strings.Replace(c.job, `"JobModifyIndex":7`, c.then, 1)
				}
				return c.fails
			}
			if c.noHolder {
				hold = nil
			}
			s = newService(t, func(x *Config) { x.Hold = hold })
			s.nomad.jobs["/v1/job/a"], s.nomad.refusesScale, s.decider.most = c.job, c.refuses, 5
			status, said := s.do(t, http.MethodPut, "/v1/job/a/scale", c.body)
			if status != c.status || !strings.Contains(said, c.said) {
				t.Errorf("%d %q, want %d %q", status, said, c.status, c.said)
			}
			if want := "default/a/g quota"; (held == want) != c.held {
				t.Errorf("held %q, want %v", held, c.held)
			}
			if last := s.nomad.last().body; c.sent != "" && !strings.Contains(last, c.sent) || strings.Contains(c.said, "conflicting") && last != "" {
				t.Errorf("Nomad was sent %s, want %s", last, c.sent)
			}
		})
	}
}

// A revert that has to wait is refused, unless Nomad refuses it itself.
func TestNomadsRefusalOfARevertComesFirst(t *testing.T) {
	s := newService(t, nil)
	s.nomad.jobs["/v1/job/a/versions"] = `{"Versions":[{"ID":"a","Version":0,"TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Name":"t","Driver":"docker","Meta":{"gpu":"1","gpu_queue":"full"}}]}]}]}`
	if status, said := s.do(t, http.MethodPut, "/v1/job/a/revert", `{"JobID":"a","JobVersion":0}`); status != 409 {
		t.Errorf("%d %s", status, said)
	}
	s.nomad.refusesRevert = "can't revert to current version"
	if status, said := s.do(t, http.MethodPut, "/v1/job/a/revert", `{"JobID":"a","JobVersion":0}`); status != 500 || !strings.Contains(said, "current version") {
		t.Errorf("%d %s", status, said)
	}
}
