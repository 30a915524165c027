// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// What Nomad lets no one change could neither wait nor be taken back: nothing of it starts that
// was not decided about. That is more of a dispatched job, and what a job starts by the clock once
// it was dispatched.
func TestNothingStartsThatCannotBeTakenBack(t *testing.T) {
	const both = `,"ParameterizedJob":{"Payload":"optional"},"Periodic":{"Spec":"* * * * * * *","Enabled":true}`
	const each = `,"ParameterizedJob":{},"Type":"sysbatch"`
	const child = `,"ParameterizedJob":{},"Dispatched":true`
	const more, back = `{"Count":2,"Target":{"Group":"g"}}`, `{"JobID":"a","JobVersion":0}`
	registers := func(more string) string {
		return strings.Replace(gpuJob("a", oneGPU), `"TaskGroups"`, more[1:]+`,"TaskGroups"`, 1)
	}
	gpus := strings.Replace(storedJob("a", ""), "full", "free", 1)
	none := strings.Replace(gpus, `"gpu":"1","gpu_queue":"free"`, `"x":"1"`, 1)
	with := func(job, more string) string { return job[:len(job)-1] + more + "}" }
	for name, row := range map[string]struct {
		path, body, job string
		status          int
		says            string
	}{
		"a registration":                  {"/v1/jobs", registers(both), "", 422, "that is periodic"},
		"a plan":                          {"/v1/job/a/plan", registers(both), "", 422, "that is periodic"},
		"a validation":                    {"/v1/validate/job", registers(both), "", 200, "that is periodic"},
		"a registration for each node":    {"/v1/jobs", registers(each), "", 422, "of type sysbatch"},
		"a dispatch for each node":        {"/v1/job/a/dispatch", `{}`, with(gpus, each), 422, "of type sysbatch"},
		"one for each node, that is none": {"/v1/jobs", registers(`,"Type":"sysbatch"`), "", 200, ""},
		"a registration without GPUs":     {"/v1/jobs", strings.Replace(registers(both), `"gpu":"1"`, `"x":"1"`, 1), "", 200, ""},
		"one of a parameterized job":      {"/v1/jobs", registers(`,"ParameterizedJob":{}`), "", 200, ""},
		"one of a periodic job":           {"/v1/jobs", registers(`,"Periodic":{},"ParameterizedJob":null`), "", 200, ""},
		"a dispatch":                      {"/v1/job/a/dispatch", `{}`, with(gpus, both), 422, "that is periodic"},
		"a dispatch of a payload":         {"/v1/job/a/dispatch/payload", `x`, with(gpus, both), 422, "that is periodic"},
		"a dispatch without GPUs":         {"/v1/job/a/dispatch", `{}`, with(none, both), 200, ""},
		"more of a dispatched job":        {"/v1/job/a/scale", more, with(gpus, child), 422, "was dispatched"},
		"more of one that has none":       {"/v1/job/a/scale", more, with(strings.Replace(gpus, `"Count":1`, `"Count":0`, 1), child), 422, "was dispatched"},
		"a version of a dispatched job":   {"/v1/job/a/revert", back, with(gpus, child), 422, "was dispatched"},
		"more of one without GPUs":        {"/v1/job/a/scale", more, with(none, child), 200, ""},
		"fewer of a dispatched job":       {"/v1/job/a/scale", `{"Count":0,"Target":{"Group":"g"}}`, with(gpus, child), 200, ""},
		"more of another job":             {"/v1/job/a/scale", more, gpus, 200, ""},
		"more of one that was submitted":  {"/v1/job/a/scale", more, with(gpus, `,"Dispatched":false`), 200, ""},
		"a submission that says it is so": {"/v1/jobs", registers(child), "", 200, ""}, // which Nomad does not read
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, nil)
			if row.job != "" {
				s.nomad.stores(row.job)
			}
			status, said := s.do(t, http.MethodPut, row.path, row.body)
			if status != row.status || !strings.Contains(said, row.says) {
				t.Errorf("%d %s, want %d %q", status, said, row.status, row.says)
			}
			started := slices.DeleteFunc(s.nomad.carriedOut(), func(path string) bool { return path == "/v1/job/a/plan" })
			if (len(started) > 0) != (row.says == "") {
				t.Errorf("Nomad carries out %v", started)
			}
		})
	}
}

// A child of another version of its parent than was decided about is taken back: nothing else
// ever takes it.
func TestAChildOfAnotherVersionIsTakenBack(t *testing.T) {
	before := strings.Replace(registeredJob("", 0), `"Count":0`, `"Count":1`, 1)
	after := strings.NewReplacer(`"JobModifyIndex":7`, `"JobModifyIndex":8`, `"gpu":"1"`, `"gpu":"8"`).Replace(before)
	for name, row := range map[string]struct {
		before, after string
		evalID        string
		token         func() (string, error)
		nomad         func(*fakeNomad)
		status        int
		stopped       bool
		counted       int
	}{
		"it stays":                      {before: before, after: before, evalID: "e", status: 200, counted: 1},
		"it changes":                    {before: before, after: after, evalID: "e", status: 409, stopped: true},
		"it had no GPU":                 {before: `{"ID":"a","JobModifyIndex":7}`, after: after, evalID: "e", status: 409, stopped: true},
		"it has none, and stays":        {before: `{"ID":"a","JobModifyIndex":7}`, after: `{"ID":"a","JobModifyIndex":7}`, evalID: "e", status: 200},
		"it is gone":                    {before: before, evalID: "e", status: 409, stopped: true},
		"it is asked for once more":     {before: before, after: after, status: 200, counted: 1},
		"the service has no token now":  {before: before, after: after, evalID: "e", token: func() (string, error) { return "", errors.New("no such file") }, status: 502},
		"and what it is cannot be read": {before: before, after: after, evalID: "e", nomad: func(f *fakeNomad) { f.reads = 500 }, status: 200, counted: 1},
	} {
		t.Run(name, func(t *testing.T) {
			counted := 0
			var s *service
			change := func() {
				s.nomad.jobs["/v1/job/a"] = row.after
				if row.nomad != nil {
					row.nomad(s.nomad)
				}
			}
			s = newService(t, func(c *Config) {
				c.Dispatched = func(string, string, []admit.Ask) { counted++ }
				c.Token = func() (string, error) { return ownToken, nil }
				if row.token != nil {
					c.Token = row.token
				}
			})
			s.nomad.jobs["/v1/job/a"], s.nomad.evalID, s.nomad.beside = row.before, row.evalID, change
			status, said := s.do(t, http.MethodPost, "/v1/job/a/dispatch", `{}`)
			if status != row.status || status == 409 && !strings.Contains(said, "dispatch it again") {
				t.Errorf("%d %s, want %d", status, said, row.status)
			}
			last := s.nomad.last()
			if stopped := last.method == http.MethodDelete && last.path == "/v1/job/a%2Fdispatch-1" && last.header.Get("X-Nomad-Token") == ownToken; stopped != row.stopped || counted != row.counted {
				t.Errorf("stopped %v, counted %d; Nomad got %+v", stopped, counted, last)
			}
		})
	}
}

// A forced child of another version of its parent than was decided about is taken back as well. Nomad
// names the evaluation alone; where that cannot be read, the child counts when it is seen.
func TestAForcedChildOfAnotherVersionIsTakenBack(t *testing.T) {
	parent := strings.Replace(registeredJob("", 0)[:len(registeredJob("", 0))-1], `"Count":0`, `"Count":1`, 1) + `,"Periodic":{"Enabled":true}}`
	none := `{"ID":"a","JobModifyIndex":7,"Periodic":{"Enabled":true}}`
	after := strings.NewReplacer(`"JobModifyIndex":7`, `"JobModifyIndex":8`, `"gpu":"1"`, `"gpu":"8"`).Replace(parent)
	for name, row := range map[string]struct {
		before, after string
		token         func() (string, error)
		unread        bool
		status        int
		stopped       bool
		counted       []string
	}{
		"it stays":                     {before: parent, after: parent, status: 200, counted: []string{"default/a/periodic-1"}},
		"it changes":                   {before: parent, after: after, status: 409, stopped: true},
		"it had no GPU":                {before: none, after: after, status: 409, stopped: true},
		"it has none, and stays":       {before: none, after: none, status: 200},
		"the evaluation is not there":  {before: parent, after: parent, unread: true, status: 200},
		"the service has no token now": {before: parent, after: parent, token: func() (string, error) { return "", errors.New("no such file") }, status: 200},
		"the service needs no token":   {before: parent, after: parent, token: func() (string, error) { return "", nil }, status: 200, counted: []string{"default/a/periodic-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			var counted []string
			s := newService(t, func(c *Config) {
				c.Dispatched = func(namespace, child string, _ []admit.Ask) { counted = append(counted, namespace+"/"+child) }
				c.Token = func() (string, error) { return ownToken, nil }
				if row.token != nil {
					c.Token = row.token
				}
			})
			s.nomad.jobs["/v1/job/a"], s.nomad.evalID = row.before, "e"
			s.nomad.beside = func() {
				s.nomad.jobs["/v1/job/a"] = row.after
				if row.unread {
					s.nomad.evalID = "e/1" // the fake one keeps it under another path
				}
			}
			status, said := s.do(t, http.MethodPut, "/v1/job/a/periodic/force", "")
			if status != row.status || status == 409 && !strings.Contains(said, "force it again") {
				t.Errorf("%d %s, want %d", status, said, row.status)
			}
			last := s.nomad.last()
			if stopped := last.method == http.MethodDelete && last.path == "/v1/job/a%2Fperiodic-1" && last.header.Get("X-Nomad-Token") == ownToken; stopped != row.stopped || !slices.Equal(counted, row.counted) {
				t.Errorf("stopped %v, counted %v; Nomad got %+v", stopped, counted, last)
			}
		})
	}
}
