// SPDX-License-Identifier: MPL-2.0

package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/server/peer"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"))
}

func gpuJob(id, meta string) string {
	return fmt.Sprintf(`{"Job":{"ID":%q,"TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Name":"t","Driver":"docker","Meta":%s}]}]},"EnforceIndex":true,"JobModifyIndex":7}`, id, meta)
}

const oneGPU = `{"gpu":"1"}`

func TestRoutes(t *testing.T) {
	for name, tc := range map[string]struct {
		method, path string
		want         route
	}{
		"register":                {"PUT", "/v1/jobs", route{kind: registered}},
		"register with POST":      {"POST", "/v1/jobs", route{kind: registered}},
		"list":                    {"GET", "/v1/jobs", route{}},
		"parse":                   {"POST", "/v1/jobs/parse", route{}},
		"by ID":                   {"POST", "/v1/job/a", route{kind: registered, jobID: "a"}},
		"escaped ID":              {"PUT", "/v1/job/team%2Fa", route{kind: registered, jobID: "team/a"}},
		"unescaped ID":            {"PUT", "/v1/job/team/a", route{kind: registered, jobID: "team/a"}},
		"plan":                    {"PUT", "/v1/job/team%2Fa/plan", route{kind: planned, jobID: "team/a"}},
		"plan with escaped slash": {"PUT", "/v1/job/a%2Fplan", route{kind: planned, jobID: "a"}},
		"escaped letters":         {"PUT", "/v1/%6aobs", route{kind: registered}},
		"validate":                {"PUT", "/v1/validate/job", route{kind: validated}},
		"scale":                   {"POST", "/v1/job/a/scale", route{kind: scaled, jobID: "a"}},
		"scale status":            {"GET", "/v1/job/a/scale", route{}},
		"dispatch":                {"PUT", "/v1/job/a/dispatch", route{kind: dispatched, jobID: "a"}},
		"dispatch of a payload":   {"POST", "/v1/job/team%2Fa/dispatch/payload", route{kind: dispatched, jobID: "team/a", payload: true}},
		"revert":                  {"PUT", "/v1/job/a/revert", route{kind: reverted, jobID: "a"}},
		"periodic force":          {"PUT", "/v1/job/a/periodic/force", route{kind: forced, jobID: "a", payload: true}},
		"evaluate":                {"PUT", "/v1/job/a/evaluate", route{}},
		"stop":                    {"DELETE", "/v1/job/a", route{}},
		"exec":                    {"GET", "/v1/client/allocation/x/exec", route{}},
	} {
		r := httptest.NewRequest(tc.method, tc.path, nil)
		if got := routeOf(r); got != tc.want {
			t.Errorf("%s: %s %s is %+v, want %+v", name, tc.method, tc.path, got, tc.want)
		}
	}
}

// What has no GPU reaches Nomad byte for byte, with its path, query and headers.
func TestPassesUntouched(t *testing.T) {
	s := newService(t, nil)
	s.nomad.jobs["/v1/job/a%2Fb"] = `{"ID":"a/b","TaskGroups":[{"Name":"g","Count":1}]}`
	for _, tc := range []struct{ method, path, body string }{
		{"PUT", "/v1/jobs?region=x&namespace=a%20b", `{ "Job" : {"ID":"a", "Odd":1.50, "TaskGroups":[] } } `},
		{"POST", "/v1/job/team%2Fa", `{"Job":{"ID":"team/a"}}`},
		{"PUT", "/v1/jobs", `not JSON at all`},
		{"PUT", "/v1/jobs/parse", `{"JobHCL":"job \"a\" {}"}`},
		{"DELETE", "/v1/job/team%2Fa?purge=true", ``},
		{"POST", "/v1/job/a%2Fb/scale", `{"Count":9,"Target":{"Group":"g"}}`},
	} {
		s.do(t, tc.method, tc.path, tc.body, "X-Nomad-Token", goodToken, "X-Odd", "1")
		got := s.nomad.last()
		path, query, _ := strings.Cut(tc.path, "?")
		if got.method != tc.method || got.path != path || got.query != query || got.body != tc.body ||
			got.header.Get("X-Nomad-Token") != goodToken || got.header.Get("X-Odd") != "1" {
			t.Errorf("%s %s arrived as %+v", tc.method, tc.path, got)
		}
	}
}

func TestAdmits(t *testing.T) {
	for _, tc := range []struct {
		method, path string
		dry, tells   bool
	}{
		{"PUT", "/v1/jobs", false, false},
		{"POST", "/v1/jobs", false, false},
		{"PUT", "/v1/job/team%2Fa", false, false},
		{"POST", "/v1/job/team%2Fa/plan", true, true},
		{"PUT", "/v1/validate/job", true, true},
	} {
		s := newService(t, nil)
		status, answer := s.do(t, tc.method, tc.path, gpuJob("team/a", oneGPU))
		got := s.nomad.last()
		if status != 200 || got.path != tc.path {
			t.Fatalf("%s %s: %d %s, arrived at %s", tc.method, tc.path, status, answer, got.path)
		}
		for _, part := range []string{`"EnforceIndex":true,"JobModifyIndex":7`, `"Name":"nvidia/gpu"`, `nomad-gpu,node-1`, `http://gpu.example/gpu/?job=team%2Fa`} {
			if !strings.Contains(got.body, part) {
				t.Errorf("%s %s: %q is not in %s", tc.method, tc.path, part, got.body)
			}
		}
		if s.decider.dry != tc.dry || len(s.decider.settled) == 1 == tc.dry {
			t.Errorf("%s %s: dry %v, settled %v", tc.method, tc.path, s.decider.dry, s.decider.settled)
		}
		if strings.Contains(answer, `"Warnings":"group \"g\": node-1 is best"`) != tc.tells {
			t.Errorf("%s %s answers %s", tc.method, tc.path, answer)
		}
		if !strings.Contains(answer, `"GPUGroups":[{"group":"g","ask":"1","count":1,"preferred":["node-1"]`) {
			t.Errorf("%s %s does not say what was decided: %s", tc.method, tc.path, answer)
		}
		if !strings.Contains(answer, "18446744073709551615") {
			t.Errorf("the index is not kept: %s", answer)
		}
	}
}

func TestHeldJobTells(t *testing.T) {
	s := newService(t, nil)
	_, answer := s.do(t, "PUT", "/v1/jobs", gpuJob("a", `{"gpu":"1","gpu_queue":"full"}`))
	if want := `group \"g\" waits for quota: full holds 8 of 8 GPUs`; !strings.Contains(answer, want) {
		t.Errorf("answer %s, want %s", answer, want)
	}
	if got := s.nomad.last().body; !strings.Contains(got, "nomad-gpu: waits for quota") {
		t.Errorf("the job does not wait: %s", got)
	}
}

func TestRefuses(t *testing.T) {
	s := newService(t, nil)
	status, answer := s.do(t, "PUT", "/v1/jobs", gpuJob("a", `{"gpu":"8GB"}`))
	if status != 400 || !strings.Contains(answer, `unit "GB" is decimal`) {
		t.Errorf("malformed: %d %s", status, answer)
	}
	if got := s.nomad.last(); got.method != "" {
		t.Errorf("Nomad was asked: %+v", got)
	}
	status, answer = s.do(t, "PUT", "/v1/validate/job", gpuJob("a", `{"gpu":"8GB"}`))
	if status != 200 || !strings.Contains(answer, `"DriverConfigValidated":true`) || !strings.Contains(answer, `is decimal`) {
		t.Errorf("validation: %d %s", status, answer)
	}
	status, answer = s.do(t, "PUT", "/v1/jobs", strings.Replace(gpuJob("a", `{}`), `"Driver"`, `"Identities":[{"Name":"a","File":true,"Filepath":"../../../etc/x"}],"Driver"`, 1))
	if status != 422 || !strings.Contains(answer, `task "t": identity: filepath "../../../etc/x" is not valid`) {
		t.Errorf("a file of the host: %d %s", status, answer)
	}
	if got := s.nomad.last(); strings.Contains(got.body, "Filepath") && got.path == "/v1/jobs" {
		t.Errorf("Nomad got the job: %+v", got)
	}
	s.decider.most = 1
	big := strings.Replace(gpuJob("a", oneGPU), `"Count":1`, `"Count":3`, 1)
	status, answer = s.do(t, "PUT", "/v1/jobs", big)
	if status != 422 || answer != "no node has room for it\n  5 nodes: GPU memory too small\n" {
		t.Errorf("no room: %d %q", status, answer)
	}
	status, answer = s.do(t, "PUT", "/v1/jobs?region=mars", gpuJob("a", oneGPU))
	if status != 400 || !strings.Contains(answer, `for region "mars"`) {
		t.Errorf("other region: %d %s", status, answer)
	}
}

// A caller who may not submit the job learns nothing about the cluster.
func TestRefusalIsForThoseWhoMaySubmit(t *testing.T) {
	s := newService(t, nil)
	s.nomad.acl, s.decider.most = true, 1
	big := strings.Replace(gpuJob("a", oneGPU), `"Count":1`, `"Count":3`, 1)
	if status, answer := s.do(t, "PUT", "/v1/jobs", big); status != 403 || strings.Contains(answer, "room") {
		t.Errorf("without a token: %d %s", status, answer)
	}
	if status, answer := s.do(t, "PUT", "/v1/jobs", big, "Authorization", "Bearer "+goodToken); status != 422 {
		t.Errorf("with a token: %d %s", status, answer)
	}
	for path, want := range map[string]int{"/v1/jobs": 422, "/v1/job/a/plan": 403} {
		if status, answer := s.do(t, "PUT", path, big, "X-Nomad-Token", registerToken); status != want {
			t.Errorf("%s by one who may register and not plan: %d %s, want %d", path, status, answer, want)
		}
	}
	if status, answer := s.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU)); status != 403 || !strings.Contains(answer, "Permission denied") {
		t.Errorf("registration without a token: %d %s", status, answer)
	}
	if got := s.decider.settled; len(got) != 1 || got[0] {
		t.Errorf("settled %v, want one that was not accepted", got)
	}
}

func TestNomadsRefusalPasses(t *testing.T) {
	s := newService(t, nil)
	s.nomad.status = 500
	status, answer := s.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU))
	if status != 500 || answer != "Enforcing job modify index 7: job exists\n" {
		t.Errorf("%d %q", status, answer)
	}
	if got := s.decider.settled; len(got) != 1 || got[0] {
		t.Errorf("settled %v", got)
	}
}

func TestRechecks(t *testing.T) {
	registeredJob := strings.TrimPrefix(strings.SplitN(gpuJob("a/b", `{"gpu":"1"}`), `,"EnforceIndex"`, 2)[0], `{"Job":`)
	ranks := strings.TrimPrefix(strings.SplitN(gpuJob("ranks", `{"gpu":"1","gpu_framework":"pytorch","gpu_distributed":"true"}`), `,"EnforceIndex"`, 2)[0], `{"Job":`)
	full := strings.TrimPrefix(strings.SplitN(gpuJob("full", `{"gpu":"1","gpu_queue":"full"}`), `,"EnforceIndex"`, 2)[0], `{"Job":`)
	for name, tc := range map[string]struct {
		path, body string
		want       int
	}{
		"scale up":          {"/v1/job/a%2Fb/scale", `{"Count":2,"Target":{"Group":"g"}}`, 200},
		"scale up too far":  {"/v1/job/a%2Fb/scale", `{"Count":5,"Target":{"Group":"g"}}`, 422},
		"scale down":        {"/v1/job/a%2Fb/scale", `{"Count":0,"Target":{"Group":"g"}}`, 200},
		"scale event":       {"/v1/job/a%2Fb/scale", `{"Message":"hello","Target":{"Group":"g"}}`, 200},
		"payload":           {"/v1/job/a%2Fb/dispatch/payload", `{"Priority":"x"} and more`, 200},
		"payload in quota":  {"/v1/job/full/dispatch/payload", `{"Meta":{"gpu":"8"},"Namespace":"team"}`, 409},
		"dispatch":          {"/v1/job/a%2Fb/dispatch", ``, 200},
		"dispatch in quota": {"/v1/job/full/dispatch", `{}`, 409}, // Nomad has no way to have it wait
		"scale in quota":    {"/v1/job/full/scale", `{"Count":2,"Target":{"Group":"g"}}`, 409},
		"revert":            {"/v1/job/a%2Fb/revert", `{"JobID":"a/b","JobVersion":3}`, 200},
		"revert too far":    {"/v1/job/a%2Fb/revert", `{"JobID":"a/b","JobVersion":4}`, 422},
		"scale a training":  {"/v1/job/ranks/scale", `{"Count":3,"Target":{"Group":"g"}}`, 409},
		"unknown job":       {"/v1/job/none/scale", `{"Count":5,"Target":{"Group":"g"}}`, 404},
		"unknown version":   {"/v1/job/full/revert", `{"JobID":"full","JobVersion":9}`, 500},
		"unknown parent":    {"/v1/job/none/dispatch", `{}`, 500},
		"force":             {"/v1/job/a%2Fb/periodic/force", ``, 200},
		"force in quota":    {"/v1/job/full/periodic/force", `{"Namespace":"team"}`, 409},
		"force of none":     {"/v1/job/none/periodic/force", ``, 500},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, nil)
			s.decider.most = 3
			s.nomad.jobs["/v1/job/a%2Fb"], s.nomad.jobs["/v1/job/full"], s.nomad.jobs["/v1/job/ranks"] = registeredJob, full, ranks
			s.nomad.jobs["/v1/job/a%2Fb/versions"] = `{"Versions":[` + strings.Replace(registeredJob, `"Count":1`, `"Count":9`, 1)[:len(registeredJob)-1] +
				`,"Version":4},` + registeredJob[:len(registeredJob)-1] + `,"Version":3}]}`
			status, answer := s.do(t, "POST", tc.path, tc.body)
			if status != tc.want {
				t.Fatalf("%d %s, want %d", status, answer, tc.want)
			}
			if got := s.nomad.last(); status == 200 && (got.body != tc.body || got.path != tc.path) {
				t.Errorf("arrived as %+v", got)
			}
			if len(s.decider.settled) > 0 {
				t.Error("a check was counted")
			}
		})
	}
}

func TestLimits(t *testing.T) {
	s := newService(t, func(c *Config) { c.Limits.MaxBodyBytes, c.Limits.JobsPerSecond, c.Limits.JobsBurst = 400, 0.001, 2 })
	if status, answer := s.do(t, "PUT", "/v1/jobs", gpuJob("a", `{"gpu":"1","x":"`+strings.Repeat("x", 500)+`"}`)); status != 413 {
		t.Errorf("large job: %d %s", status, answer)
	}
	s.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU))
	if status, answer := s.do(t, "POST", "/api/v1/gpu/allocate", "{}"); status != 429 || !json.Valid([]byte(answer)) {
		t.Errorf("a reservation above the rate: %d %s", status, answer)
	}
	if status, answer := s.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU)); status != 429 {
		t.Errorf("third job: %d %s", status, answer)
	}
	if status, _ := s.do(t, "GET", "/v1/jobs", ""); status != 404 {
		t.Errorf("reads are limited too: %d", status)
	}
}

func TestAuditHasNoToken(t *testing.T) {
	s := newService(t, nil)
	body := strings.Replace(gpuJob("a", oneGPU), `{"Job"`, `{"SecretID":"`+goodToken+`","Job"`, 1)
	s.do(t, "PUT", "/v1/jobs", body, "X-Nomad-Token", goodToken)
	s.do(t, "PUT", "/v1/jobs", gpuJob("b", `{"gpu":"x"}`), "Authorization", "Bearer "+goodToken)
	s.do(t, "PUT", "/v1/jobs", gpuJob("c", `{"gpu":"1","gpu_queue":"busy"}`), "X-Nomad-Token", goodToken)
	s.do(t, "PUT", "/v1/jobs", gpuJob("d", `{"gpu":"1","gpu_queue":"full"}`), "X-Nomad-Token", goodToken)
	s.nomad.status = 500
	s.do(t, "PUT", "/v1/jobs", body)
	var records []Record
	dec := json.NewDecoder(strings.NewReader(s.audit.String()))
	for dec.More() {
		var r Record
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	var got []string
	for _, r := range records {
		if r.Version != AuditVersion || !strings.HasPrefix(r.Remote, "127.0.0.1:") || time.Since(r.At) > time.Minute {
			t.Errorf("record %+v", r)
		}
		got = append(got, r.Action+" "+r.Outcome+" "+r.Caller.Name)
	}
	if want := "register placed alice, register refused alice, register waits alice, register held alice, register rejected alice"; strings.Join(got, ", ") != want {
		t.Errorf("audit %q, want %q", got, want)
	}
	if strings.Contains(s.audit.String()+s.log.String(), goodToken) {
		t.Error("a token was logged")
	}
}

type leads struct {
	address string
	self    bool
}

func (l leads) Secret() string { return "of the leader" }

func (l leads) Leader() (string, bool) { return l.address, l.self }

// A submission goes to the leader on a connection of its own: one that was kept may be that
// of a leader that is dead, and who waits for another would be told to try again.
func TestFollowerKeepsNoConnectionToTheLeader(t *testing.T) {
	kept := make(chan bool, 3)
	leader := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { kept <- !r.Close }))
	t.Cleanup(leader.Close)
	follower := newService(t, func(c *Config) { c.Leadership = leads{address: leader.URL} })
	for range cap(kept) {
		if status, answer := follower.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		if <-kept {
			t.Error("the connection to the leader is kept")
		}
	}
}

func TestFollowerHandsOver(t *testing.T) {
	leader := newService(t, func(c *Config) { c.Leadership = leads{self: true} })
	follower := newService(t, func(c *Config) { c.Leadership = leads{address: leader.http.URL} })
	if status, answer := follower.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU)); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	if log := leader.audit.String(); !strings.Contains(log, `"remote":"127.0.0.1","via":"127.0.0.1:`) {
		t.Errorf("the leader does not log whose job it was: %s", log)
	}
	if len(leader.decider.asked) != 1 || len(follower.decider.asked) != 0 {
		t.Error("the follower decided")
	}
	if status, _ := follower.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU), peer.Forwarded, "1"); status != http.StatusServiceUnavailable {
		t.Errorf("handed to and fro: %d", status)
	}
	brief := testLimits
	brief.DecideTimeout = time.Nanosecond
	for name, address := range map[string]string{"nobody leads": "", "the leader is dead": "http://127.0.0.1:1"} {
		s := newService(t, func(c *Config) { c.Leadership, c.Limits = leads{address: address}, brief })
		if status, text := s.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU)); status != http.StatusServiceUnavailable || !strings.Contains(text, "no replica") {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	nobody := newService(t, func(c *Config) { c.Leadership = leads{} })
	if status, _ := nobody.do(t, "PUT", "/v1/jobs", `{"Job":{"ID":"a"}}`); status != 200 {
		t.Errorf("a job without GPUs needs no leader: %d", status)
	}
}

// The audit log believes what a replica says of the client, and no one else:
// everybody can send the header by which replicas mark what they pass on.
func TestTheClientsAddressIsNotForged(t *testing.T) {
	for header, forged := range map[string]bool{"1": false, "": false, "of another": false, "of the leader": true} {
		s := newService(t, func(c *Config) { c.Leadership = leads{self: true} })
		if status, text := s.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU), peer.Forwarded, header, "X-Forwarded-For", "203.0.113.7"); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		if got := strings.Contains(s.audit.String(), `"remote":"203.0.113.7"`); got != forged {
			t.Errorf("header %q: the log has %s", header, s.audit.String())
		}
	}
}

// What is meant for another region is about a job that is not seen here.
func TestAnotherRegionsJobsAreNotJudgedHere(t *testing.T) {
	s := newService(t, func(c *Config) { c.Region = "here" })
	s.nomad.jobs = map[string]string{"/v1/job/a": `{"ID":"a","TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}]}`}
	for query, asked := range map[string]int{"?region=there": 0, "?region=here": 1, "": 1} {
		s.decider.asked = nil
		s.do(t, "PUT", "/v1/job/a/scale"+query, `{"Count":3,"Target":{"Group":"g"}}`)
		if got := len(s.decider.asked); got != asked {
			t.Errorf("%q: %d decisions", query, got)
		}
	}
}

// succession is a leader that died, and then another one.
type succession struct {
	asked     atomic.Int32
	dead, now string
}

func (*succession) Secret() string { return "of the leader" }

func (s *succession) Leader() (string, bool) {
	if s.asked.Add(1) == 1 {
		return s.dead, false
	}
	return s.now, false
}

// TestFollowerWaitsForTheNextLeader submits while the leader that is known is
// dead: the submitter waits, and gets one answer.
func TestFollowerWaitsForTheNextLeader(t *testing.T) {
	leader := newService(t, nil)
	both := &succession{dead: "http://127.0.0.1:1", now: leader.http.URL}
	follower := newService(t, func(c *Config) { c.Leadership = both })
	if status, answer := follower.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU)); status != 200 {
		t.Fatalf("%d %s", status, answer)
	}
	if len(leader.decider.asked) != 1 || both.asked.Load() != 2 {
		t.Errorf("%d decisions after asking %d times who leads", len(leader.decider.asked), both.asked.Load())
	}
}

// TestPreservedCounts: with -preserve-counts Nomad keeps the counts that are registered,
// so these are decided about, each for its own group; without it the job's own.
func TestPreservedCounts(t *testing.T) {
	groups := func(g, h int) string {
		one := func(name string, count int) string {
			return fmt.Sprintf(`{"Name":%q,"Count":%d,"Tasks":[{"Name":"t","Driver":"docker","Meta":{"gpu":"1"}}]}`, name, count)
		}
		return `{"ID":"a","TaskGroups":[` + one("g", g) + "," + one("h", h) + `]}`
	}
	for preserve, want := range map[bool][]int{true: {3, 2}, false: {1, 1}} {
		s := newService(t, nil)
		s.nomad.jobs["/v1/job/a"] = groups(3, 2)
		if status, answer := s.do(t, "PUT", "/v1/jobs", fmt.Sprintf(`{"Job":%s,"PreserveCounts":%v}`, groups(1, 1), preserve)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
		if got := []int{s.decider.asked[0].Count, s.decider.asked[1].Count}; !slices.Equal(got, want) {
			t.Errorf("preserve %v: decided about %v, want %v", preserve, got, want)
		}
	}
}
