// SPDX-License-Identifier: MPL-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
)

// storedJob is a job as Nomad shows it, of a queue that is full.
func storedJob(id, more string) string {
	return `{"ID":"` + id + `","Version":0,"TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Name":"t","Driver":"docker","Meta":{"gpu":"1","gpu_queue":"full"}}]}]` + more + `}`
}

// A request is checked as Nomad reads it: what a query, or what else the body says, leads past
// no check.
func TestNothingInARequestLeadsPastTheCheck(t *testing.T) {
	const elsewhere = `"Namespace":"team"`
	for name, c := range map[string]struct {
		path, body string
		token      bool
	}{
		"a scaling":                         {path: "/v1/job/a/scale", body: `{"Count":2,"Target":{"Group":"g"}}`},
		"a scaling that is to block":        {path: "/v1/job/a/scale?index=99999999&wait=10m", body: `{"Count":2,"Target":{"Group":"g"}}`},
		"a scaling and more":                {path: "/v1/job/a/scale", body: `{"Count":2,"Target":{"Group":"g"}} x`},
		"a scaling with a field of reverts": {path: "/v1/job/a/scale", body: `{"Count":2,"Target":{"Group":"g"},"JobVersion":"x"}`},
		"a revert":                          {path: "/v1/job/a/revert", body: `{"JobID":"a","JobVersion":0}`},
		"a revert that is to block":         {path: "/v1/job/a/revert?index=99999999", body: `{"JobID":"a","JobVersion":0}`},
		"a revert and more":                 {path: "/v1/job/a/revert", body: `{"JobID":"a","JobVersion":0}]`},
		"a revert with a scaling's field":   {path: "/v1/job/a/revert", body: `{"JobID":"a","JobVersion":0,"Count":"x","Target":1}`},
		"a revert in another namespace":     {path: "/v1/job/b/revert", body: `{"JobID":"b","JobVersion":0,` + elsewhere + `}`},
		"a revert with its token":           {path: "/v1/job/a/revert", body: `{"JobID":"a","JobVersion":0,"AuthToken":"` + goodToken + `"}`, token: true},
		"a dispatch":                        {path: "/v1/job/a/dispatch", body: `{}`},
		"a dispatch that is to block":       {path: "/v1/job/a/dispatch?index=99999999", body: `{}`},
		"a force":                           {path: "/v1/job/a/periodic/force"},
		"a force that is to block":          {path: "/v1/job/a/periodic/force?index=99999999"},
		"a force that says where":           {path: "/v1/job/a/periodic/force", body: `{` + elsewhere + `}`}, // which Nomad does not read
		"a dispatch in another namespace":   {path: "/v1/job/b/dispatch", body: `{` + elsewhere + `}`},
		"a dispatch with its token":         {path: "/v1/job/a/dispatch", body: `{"authtoken":"` + goodToken + `"}`, token: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, nil)
			s.nomad.blocks, s.nomad.acl = true, c.token
			for _, at := range []string{"/v1/job/a", "/v1/job/b?namespace=team"} {
				path, query, _ := strings.Cut(at, "?")
				if query != "" {
					query = "?" + query
				}
				s.nomad.jobs[path+query] = storedJob(path[len(path)-1:], "")
				s.nomad.jobs[path+"/versions"+query] = `{"Versions":[` + storedJob(path[len(path)-1:], "") + `]}`
			}
			if status, said := s.do(t, http.MethodPost, c.path, c.body); status != http.StatusConflict {
				t.Errorf("%d %s", status, said)
			}
		})
	}
}

// No header that decides something is taken away on the way, whatever the client says of its
// connection: what is checked for one token is not carried out for another, and the leader's
// audit log names the client, by the address that the other replica saw.
func TestNoHeaderIsTakenAway(t *testing.T) {
	s := newService(t, nil)
	s.nomad.acl = true
	s.nomad.jobs["/v1/job/a"] = storedJob("a", "")
	status, said := s.do(t, http.MethodPost, "/v1/job/a/dispatch", `{"AuthToken":"`+goodToken+`"}`, "X-Nomad-Token", "another", "Connection", "X-Nomad-Token")
	if status != http.StatusForbidden {
		t.Errorf("%d %s", status, said)
	}
	leader := newService(t, func(c *Config) { c.Leadership = leads{self: true} })
	follower := newService(t, func(c *Config) { c.Leadership = leads{address: leader.http.URL} })
	for _, more := range [][]string{{"Connection", peer.Forwarded}, {"X-Forwarded-For", "203.0.113.7"}, {"X-Forwarded-For", "203.0.113.7, 203.0.113.8,"}} {
		leader.audit.Reset()
		if status, said := follower.do(t, http.MethodPut, "/v1/jobs", gpuJob("a", oneGPU), more...); status != http.StatusOK {
			t.Fatalf("%d %s", status, said)
		}
		if log := leader.audit.String(); !strings.Contains(log, `"remote":"127.0.0.1","via":"127.0.0.1:`) {
			t.Errorf("%q: the leader logs %s", more, log)
		}
	}
}

// What Nomad would not read, it refuses itself, and nothing is held for it before.
func TestNothingIsHeldForWhatNomadCannotRead(t *testing.T) {
	held := false
	s := newService(t, func(c *Config) {
		c.Hold = func(context.Context, string, string, string, admit.Hold) error { held = true; return nil }
	})
	s.nomad.jobs["/v1/job/a"] = registeredJob("full", 0)
	for _, more := range []string{`"Message":5`, `"Error":"x"`, `"Meta":[]`} {
		s.do(t, http.MethodPut, "/v1/job/a/scale", `{"Count":2,"Target":{"Group":"g"},`+more+`}`)
		if held {
			t.Errorf("%s: held", more)
		}
	}
}

// The region of a job is the one that Nomad registers it in: the body's comes first.
func TestTheRegionIsNomads(t *testing.T) {
	const plain = `{"ID":"a","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"docker","Resources":{"Devices":[{"Name":"nvidia/gpu","Count":8}]}}]}]%s}`
	for name, c := range map[string]struct {
		query, region, job string
		asked              int
	}{
		"none":                    {asked: 1},
		"another":                 {query: "?region=there"},
		"another in the body":     {region: "there"},
		"another in the job":      {job: "there"},
		"the body before the URL": {query: "?region=there", region: "here", asked: 1},
		"and the other way":       {query: "?region=here", region: "there"},
		"the body before the job": {region: "here", job: "there", asked: 1},
		"everywhere":              {query: "?region=there", region: "global", asked: 1},
	} {
		s := newService(t, func(c *Config) { c.Region = "here" })
		inJob := ""
		if c.job != "" {
			inJob = `,"Region":"` + c.job + `"`
		}
		s.do(t, http.MethodPut, "/v1/jobs"+c.query, fmt.Sprintf(`{"Job":%s,"Region":%q}`, fmt.Sprintf(plain, inJob), c.region))
		if got := len(s.decider.asked); got != c.asked {
			t.Errorf("%s: %d groups were decided about, want %d", name, got, c.asked)
		}
	}
}

// What a submission has Nomad keep of the registered job is decided about as it is kept,
// whatever the registered job is, and wherever the request says that it is.
func TestWhatIsKeptIsDecidedAbout(t *testing.T) {
	const group = `{"Name":"g","Count":%d,"Tasks":[{"Name":"t","Driver":"docker"%s,"Resources":{"CPU":%d%s}}]}`
	job := func(count int, meta string, cpu int, devices, more string) string {
		return `{"ID":"a","TaskGroups":[` + fmt.Sprintf(group, count, meta, cpu, devices) + `]` + more + `}`
	}
	const one, eight = `,"Meta":{"gpu":"1"}`, `,"Devices":[{"Name":"nvidia/gpu","Count":8}]`
	for name, c := range map[string]struct {
		path, registered, submitted, flags string
		at                                 string // where it is registered, beside its path
		count                              int    // 0: nothing is decided about
	}{
		"a count":                            {registered: job(7, one, 1, "", ""), submitted: job(1, one, 1, "", ""), flags: `"PreserveCounts":true`, count: 7},
		"of a group without GPUs":            {registered: job(7, "", 1, "", ""), submitted: job(1, one, 1, "", ""), flags: `"PreserveCounts":true`, count: 7},
		"of a job that was stopped":          {registered: job(7, one, 1, "", `,"Stop":true`), submitted: job(1, one, 1, "", ""), flags: `"PreserveCounts":true`, count: 7},
		"of a job that cannot be read":       {registered: job(7, `,"Meta":{"gpu":"nonsense"}`, 1, "", ""), submitted: job(1, one, 1, "", ""), flags: `"PreserveCounts":true`, count: 7},
		"in the namespace of the job":        {registered: job(7, one, 1, "", ""), submitted: job(1, one, 1, "", `,"Namespace":"team"`), flags: `"PreserveCounts":true`, at: "?namespace=team", count: 7},
		"in the namespace of the body":       {registered: job(7, one, 1, "", ""), submitted: job(1, one, 1, "", ""), flags: `"PreserveCounts":true,"Namespace":"team"`, at: "?namespace=team", count: 7},
		"while it is to block":               {path: "?index=99999999", registered: job(7, one, 1, "", ""), submitted: job(1, one, 1, "", ""), flags: `"PreserveCounts":true`, count: 7},
		"of no job":                          {registered: "", submitted: job(1, one, 1, "", ""), flags: `"PreserveCounts":true,"PreserveResources":true`, count: 1},
		"resources, but not their devices":   {registered: job(1, "", 500, eight, ""), submitted: job(1, "", 1, "", ""), flags: `"PreserveResources":true`},
		"resources beside those of the meta": {registered: job(1, one, 500, eight, ""), submitted: job(1, one, 1, "", ""), flags: `"preserveresources":true`, count: 1},
		"resources of a job that is stopped": {registered: job(1, "", 500, eight, `,"Stop":true`), submitted: job(1, "", 1, "", ""), flags: `"PreserveResources":true`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, nil)
			s.nomad.blocks = true
			s.nomad.jobs["/v1/job/a"+c.at] = c.registered
			if status, said := s.do(t, http.MethodPut, "/v1/jobs"+c.path, `{"Job":`+c.submitted+`,`+c.flags+`}`); status != http.StatusOK {
				t.Fatalf("%d %s", status, said)
			}
			var sent struct {
				Job struct {
					TaskGroups []struct {
						Count int
						Tasks []struct {
							Resources struct {
								CPU     int
								Devices []struct{ Count int }
							}
						}
					}
				}
				PreserveCounts, PreserveResources bool
			}
			if err := json.Unmarshal([]byte(s.nomad.last().body), &sent); err != nil {
				t.Fatal(err)
			}
			var asked []int
			for _, a := range s.decider.asked {
				asked = append(asked, a.Count)
			}
			g := sent.Job.TaskGroups[0]
			switch r := g.Tasks[0].Resources; {
			case c.count > 0 && (!slices.Equal(asked, []int{c.count}) || g.Count != c.count), c.count == 0 && asked != nil:
				t.Errorf("decided about %v and sent %d, want %d", asked, g.Count, c.count)
			case c.registered != "" && (sent.PreserveCounts || sent.PreserveResources):
				t.Errorf("Nomad is to keep more: %+v", sent)
			case strings.Contains(strings.ToLower(c.flags), "resources") && c.registered != "" && r.CPU != 500:
				t.Errorf("CPU %d", r.CPU)
			case len(r.Devices) > 0 && r.Devices[0].Count != 1, c.count == 0 && len(r.Devices) > 0:
				t.Errorf("devices %v", r.Devices)
			}
		})
	}
}

// What cannot be read of the registered job is not kept unseen.
func TestNothingIsKeptUnseen(t *testing.T) {
	body := strings.Replace(gpuJob("a", oneGPU), `"EnforceIndex"`, `"PreserveCounts":true,"EnforceIndex"`, 1)
	s := newService(t, nil)
	s.nomad.acl = true
	s.nomad.jobs["/v1/job/a"] = storedJob("a", "")
	if status, said := s.do(t, http.MethodPut, "/v1/jobs", body, "X-Nomad-Token", registerToken); status != http.StatusForbidden || !strings.Contains(said, "read-job") {
		t.Errorf("%d %s", status, said)
	}
	s.nomad.acl, s.nomad.jobs["/v1/job/a"] = false, "no JSON"
	if status, said := s.do(t, http.MethodPut, "/v1/jobs", body); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, said)
	}
}

// A dispatch says nothing of what was decided for its parent: which queue pays, and for what, is
// the parent's, and the child would be counted as its own meta says. Its priority is its own.
func TestADispatchChangesNothingThatWasDecided(t *testing.T) {
	for body, want := range map[string]struct{ status, priority int }{
		`{}`:                             {200, 50},
		`{"Meta":{"input":"a"}}`:         {200, 50},
		`{"Meta":{"gpu_queue":"other"}}`: {422, 0},
		`{"meta":{"input":"a","gpu_gang":"true","gpu":"8"}}`: {422, 0},
		`{"Meta":{"GPU":"8"}}`:                               {200, 50}, // which is another
		`{"Priority":80}`:                                    {200, 80},
		`{"Priority":0}`:                                     {200, 50},
		`{"Priority":"80"}`:                                  {200, 50}, // which Nomad refuses
	} {
		s := newService(t, nil)
		s.nomad.jobs["/v1/job/a"] = strings.Replace(registeredJob("", 0), `"Count":0`, `"Count":1`, 1)
		status, said := s.do(t, http.MethodPost, "/v1/job/a/dispatch", body)
		if status != want.status || status == 422 && !strings.Contains(said, "gpu") {
			t.Errorf("%s: %d %s", body, status, said)
		}
		if asked := s.decider.asked; want.priority > 0 && (len(asked) != 1 || asked[0].Priority != want.priority) || want.priority == 0 && asked != nil {
			t.Errorf("%s: decided about %+v", body, asked)
		}
	}
}
