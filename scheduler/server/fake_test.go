// SPDX-License-Identifier: MPL-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

const (
	goodToken = "8d6ab3b6-1c57-4f1e-9c56-secret000000"
	// registerToken may register jobs, and plan and read none: it has register-job alone.
	registerToken = "8d6ab3b6-1c57-4f1e-9c56-secret000001"
	// startToken may scale, dispatch, revert and force jobs, and read none; ownToken is the service's
	// own, which may read them all.
	startToken = "8d6ab3b6-1c57-4f1e-9c56-secret000002"
	ownToken   = "8d6ab3b6-1c57-4f1e-9c56-secret000003"
)

// forbids reports whether Nomad refuses a request because of its token, which the body of a
// dispatch, a revert or a registration may hold.
func forbids(r *http.Request, body []byte) bool {
	var held struct{ AuthToken, SecretID string }
	_ = json.Unmarshal(body, &held)
	token := nomad.CallerToken(r.Header)
	if rt := routeOf(r); token == "" && r.Method != http.MethodGet && rt.kind != scaled && !rt.payload {
		token = held.AuthToken + held.SecretID
	}
	switch token {
	case goodToken:
		return false
	case registerToken:
		return r.Method == http.MethodGet || routeOf(r).kind != registered
	case startToken:
		kind := routeOf(r).kind
		return kind != scaled && kind != dispatched && kind != reverted && kind != forced
	case ownToken:
		return r.Method != http.MethodGet
	}
	return true
}

// neverRegisters reports whether a registration is one over a version that no job has.
func neverRegisters(body []byte) bool {
	var r api.JobRegisterRequest
	return json.Unmarshal(body, &r) == nil && r.EnforceIndex && r.JobModifyIndex == math.MaxUint64
}

// fakeNomad keeps what was registered and answers as Nomad does.
type fakeNomad struct {
	mu    sync.Mutex
	calls []call
	// jobs are the jobs' JSON, by escaped path and, outside of the default namespace, with
	// "?namespace=…".
	jobs map[string]string
	// status answers writes where it is not 0; acl asks for goodToken.
	status int
	acl    bool
	// beside happens while a dispatch or a force is carried out, which answers with evalID.
	beside func()
	evalID string
	// reads answers reads of jobs where it is not 0.
	reads int
	// refusesScale and refusesRevert are what every scaling and every revert is refused
	// with; empty: it is not.
	refusesScale, refusesRevert string
	// blocks has queries that block time out.
	blocks bool
	// queues are answers about the batch queues of node pools; a Nomad before 2.1 has none.
	queues map[string]string
}

type call struct {
	method, path, query, body string
	header                    http.Header
}

func (f *fakeNomad) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, string(body), r.Header.Clone()})
	switch {
	case r.URL.Path == "/v1/acl/token/self":
		fmt.Fprint(w, `{"AccessorID":"acc-1","Name":"alice"}`)
	case f.acl && forbids(r, body):
		http.Error(w, "Permission denied", http.StatusForbidden)
	case f.reads != 0 && r.Method == http.MethodGet:
		http.Error(w, "no cluster leader", f.reads)
	case f.status != 0 && r.Method != http.MethodGet:
		http.Error(w, "Enforcing job modify index 7: job exists", f.status)
	case r.URL.Path == "/v1/jobs" && neverRegisters(body):
		http.Error(w, "Enforcing job modify index 18446744073709551615: job does not exist", http.StatusInternalServerError)
	case strings.HasSuffix(r.URL.Path, "/scale") && f.refusesScale != "":
		http.Error(w, f.refusesScale, http.StatusBadRequest)
	case strings.HasSuffix(r.URL.Path, "/scale") && strings.Contains(string(body), `"JobModifyIndex":18446744073709551615`):
		http.Error(w, "Enforcing job modify index 18446744073709551615: job exists with conflicting job modify index: 7", http.StatusInternalServerError)
	case strings.HasSuffix(r.URL.Path, "/revert") && f.refusesRevert != "":
		http.Error(w, f.refusesRevert, http.StatusInternalServerError)
	case strings.HasSuffix(r.URL.Path, "/revert") && strings.Contains(string(body), `"EnforcePriorVersion":18446744073709551615`):
		http.Error(w, "Current job has version 3; enforcing version 18446744073709551615", http.StatusInternalServerError)
	case r.Method == http.MethodGet && f.blocks && r.URL.Query().Has("index"):
		http.Error(w, "the time is over", http.StatusGatewayTimeout)
	case r.URL.Path == "/v1/queue/jobs" && f.queues[r.URL.Query().Get("node_pool")] != "":
		fmt.Fprint(w, f.queues[r.URL.Query().Get("node_pool")])
	case r.Method == http.MethodGet && f.job(r.URL) != "":
		fmt.Fprint(w, f.job(r.URL))
	case r.Method == http.MethodGet:
		http.Error(w, "not found", http.StatusNotFound)
	case routeOf(r).jobID == noJobsID && routeOf(r).kind == forced:
		http.Error(w, noPeriodic, http.StatusInternalServerError)
	case routeOf(r).jobID == noJobsID:
		http.Error(w, noParent, http.StatusInternalServerError)
	case routeOf(r).startsChild():
		f.carriesOut(w, routeOf(r))
	default:
		w.Header().Set("X-Nomad-Index", "12")
		fmt.Fprint(w, `{"EvalID":"e","Index":18446744073709551615,"Warnings":""}`)
	}
}

// carriesOut dispatches a child, or forces one.
func (f *fakeNomad) carriesOut(w http.ResponseWriter, rt route) {
	if f.beside != nil {
		f.beside()
	}
	if rt.kind == forced {
		f.jobs["/v1/evaluation/"+f.evalID] = fmt.Sprintf(`{"ID":%q,"JobID":%q}`, f.evalID, rt.jobID+"/periodic-1")
		fmt.Fprintf(w, `{"EvalID":%q,"EvalCreateIndex":12,"Index":12}`, f.evalID)
		return
	}
	fmt.Fprintf(w, `{"DispatchedJobID":%q,"EvalID":%q,"Index":12}`, rt.jobID+"/dispatch-1", f.evalID)
}

// job is the JSON of a job or of its versions, "" where there is none.
func (f *fakeNomad) job(at *url.URL) string {
	if namespace := at.Query().Get("namespace"); namespace != "" && namespace != "default" {
		return f.jobs[at.EscapedPath()+"?namespace="+namespace]
	}
	return f.jobs[at.EscapedPath()]
}

// carriedOut are the paths of the writes that change something.
func (f *fakeNomad) carriedOut() (paths []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		asked := strings.Contains(c.body, fmt.Sprint(uint64(math.MaxUint64))) || strings.HasPrefix(c.path, jobPrefix+url.PathEscape(noJobsID)+"/")
		if c.method != http.MethodGet && !asked && !strings.HasSuffix(c.path, "/plan") && c.path != "/v1/validate/job" {
			paths = append(paths, c.path)
		}
	}
	return paths
}

// last is the last write that reached Nomad.
func (f *fakeNomad) last() call {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.calls) - 1; i >= 0; i-- {
		if f.calls[i].method != http.MethodGet {
			return f.calls[i]
		}
	}
	return call{}
}

// fakeDecider sends everything to node-1, refuses counts above most, and holds
// the queue "full".
type fakeDecider struct {
	mu        sync.Mutex
	asked     []admit.Ask
	dry       bool
	unchanged []uint64
	settled   []bool
	most      int
}

func (d *fakeDecider) Decide(_ context.Context, asks []admit.Ask, dry bool) ([]admit.Decision, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked, d.dry = asks, dry
	var decisions []admit.Decision
	for _, a := range asks {
		if d.most > 0 && a.Count > d.most {
			return nil, &admit.Refusal{Status: 422, Text: "no node has room for it", Details: []string{"5 nodes: GPU memory too small"}}
		}
		one := admit.Decision{Group: a.Group, Preferred: []string{"node-1"}, Explanation: []string{"node-1 is best"}, Outcome: view.Placed}
		switch a.Queue {
		case "full":
			one.Hold, one.Outcome = &admit.Hold{Kind: "quota", Sentence: "full holds 8 of 8 GPUs"}, view.Held
		case "busy":
			one.Outcome = view.Waits
		}
		for _, t := range a.Tasks {
			td := admit.TaskDecision{Task: t.Task, Devices: []admit.Device{{Name: "nvidia/gpu", Count: 1, Prefer: "A100"}}}
			one.Tasks = append(one.Tasks, td)
		}
		decisions = append(decisions, one)
	}
	return decisions, nil
}

func (d *fakeDecider) Settle(_ context.Context, _ []admit.Ask, _ []admit.Decision, accepted bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settled = append(d.settled, accepted)
}

func (d *fakeDecider) Unchanged(_ []admit.Ask, index uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unchanged = append(d.unchanged, index)
}

// service is a server between a client and a fake Nomad.
type service struct {
	nomad   *fakeNomad
	decider *fakeDecider
	audit   *bytes.Buffer
	log     *bytes.Buffer
	http    *httptest.Server
}

// testLimits bound nothing that a test does.
var testLimits = Limits{MaxBodyBytes: 1 << 20, DecideTimeout: time.Minute}

func newService(t *testing.T, change func(*Config)) *service {
	t.Helper()
	s := &service{nomad: &fakeNomad{jobs: map[string]string{}}, decider: &fakeDecider{}, audit: &bytes.Buffer{}, log: &bytes.Buffer{}}
	upstream := httptest.NewServer(s.nomad)
	t.Cleanup(upstream.Close)
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Nomad: address, Decider: s.decider, Limits: testLimits, Audit: NewAudit(s.audit), PageURL: "http://gpu.example/gpu/",
		Region: "global", Logger: hclog.New(&hclog.LoggerOptions{Output: s.log, Level: hclog.Trace})}
	if change != nil {
		change(&c)
	}
	server, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.http = httptest.NewServer(server.Handler())
	t.Cleanup(func() {
		s.http.Close()
		server.proxy.close()
	})
	return s
}

// do sends a request and returns the status and the body.
func (s *service) do(t *testing.T, method, path, body string, header ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.http.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
