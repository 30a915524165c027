// SPDX-License-Identifier: MPL-2.0

package server

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace/tracetest"
)

// traced returns a tracer that every request is kept of.
func traced(t *testing.T, collector *tracetest.Receiver) *trace.Tracer {
	t.Helper()
	tr, err := trace.New(t.Context(), trace.Config{Endpoint: collector.URL, Ratio: 1, Failed: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

const client = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// A submission is traced from the client's span on, with what came of it and without
// what it holds; what asks for no GPU, and a plan, is not.
func TestSubmissionsAreTraced(t *testing.T) {
	const secret = "hunter2-s3cr3t"
	for name, tc := range map[string]struct {
		change  func(*service)
		job     string
		outcome string
		spans   string
	}{
		"placed":   {func(*service) {}, gpuJob("a", `{"gpu":"1","password":"`+secret+`"}`), "placed", "admission decide register"},
		"refused":  {func(s *service) { s.decider.most = 1 }, strings.Replace(gpuJob("a", oneGPU), `"Count":1`, `"Count":2`, 1), "refused", "admission decide"},
		"rejected": {func(s *service) { s.nomad.status = 500 }, gpuJob("a", oneGPU), "rejected", "admission decide register"},
		"no GPU":   {func(*service) {}, gpuJob("a", `{}`), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			collector := tracetest.Start(t)
			tr := traced(t, collector)
			s := newService(t, func(c *Config) { c.Traces = tr })
			tc.change(s)
			headers := []string{"Traceparent", client, "X-Nomad-Token", secret, "Authorization", "Bearer " + secret, "Cookie", secret}
			s.do(t, "PUT", "/v1/jobs?namespace=team", tc.job, headers...)
			s.do(t, "PUT", "/v1/job/a/plan", tc.job, headers...)
			s.http.Close() // the span of a request ends after its answer
			tr.Close()
			var names []string
			for _, one := range []string{"admission", "decide", "register", "hand over"} {
				for range collector.Named(one) {
					names = append(names, one)
				}
			}
			if got := strings.Join(names, " "); got != tc.spans {
				t.Fatalf("spans %q, want %q", got, tc.spans)
			}
			for _, span := range collector.Spans() {
				if !strings.Contains(client, span.TraceID) {
					t.Errorf("%s is of another trace than the client's", span.Name)
				}
				if span.Name == "admission" && (span.Attributes["gpu.outcome"] != tc.outcome || span.Attributes["nomad.job.id"] != "a" || span.Attributes["nomad.namespace"] != "team" || !strings.Contains(client, span.Parent)) {
					t.Errorf("the admission is %+v", span)
				}
			}
			if strings.Contains(collector.Sent(), secret) {
				t.Error("a secret was sent to the collector")
			}
		})
	}
}

// A replica that does not lead hands the job over, and the leader's spans are below its.
func TestTheLeadersSpansAreBelowTheFollowers(t *testing.T) {
	collector := tracetest.Start(t)
	atLeader, atFollower := traced(t, collector), traced(t, collector)
	leads := newService(t, func(c *Config) { c.Traces = atLeader })
	follows := newService(t, func(c *Config) { c.Traces, c.Leadership = atFollower, elsewhere(leads.http.URL) })
	if status, text := follows.do(t, "PUT", "/v1/jobs", gpuJob("a", oneGPU)); status != http.StatusOK {
		t.Fatalf("%d: %s", status, text)
	}
	// The spans of requests end after their answers.
	leads.http.Close()
	follows.http.Close()
	atLeader.Close()
	atFollower.Close()
	admissions, handed := collector.Named("admission"), collector.Named("hand over")
	if len(admissions) != 2 || len(handed) != 1 || len(collector.Named("decide")) != 1 {
		t.Fatalf("spans %+v", collector.Spans())
	}
	ours, leaders := admissions[0], admissions[1]
	if ours.Parent != "" {
		ours, leaders = leaders, ours
	}
	if ours.Parent != "" || handed[0].Parent != ours.ID || leaders.Parent != handed[0].ID || leaders.TraceID != ours.TraceID {
		t.Errorf("spans %+v", collector.Spans())
	}
}

// elsewhere is the address of the replica that leads.
type elsewhere string

func (e elsewhere) Leader() (string, bool) { return string(e), false }
func (elsewhere) Secret() string           { return "" }
