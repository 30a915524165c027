// SPDX-License-Identifier: MPL-2.0

package follow

import (
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace/tracetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// replica is one that leads, unless it is told otherwise, and traces.
type replica struct {
	*servicetest.Service
	*Follower
	leads bool
}

func newReplica(t *testing.T, s *servicetest.Service, collector *tracetest.Receiver) *replica {
	t.Helper()
	tr, err := trace.New(t.Context(), trace.Config{Endpoint: collector.URL, Ratio: 1, Failed: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	r := &replica{Service: s, leads: true}
	r.Follower = &Follower{Traces: tr, State: s.State, Decides: func() bool { return r.leads }, Now: s.Clock.Now}
	return r
}

// submit has a job admitted below a span, and returns the span's trace.
func (r *replica) submit(t *testing.T, a admit.Ask) {
	t.Helper()
	ctx, span := r.Traces.Request(httptest.NewRequest("PUT", "/v1/jobs", nil), time.Now())
	defer span.End()
	if _, err := r.Decide(ctx, []admit.Ask{a}, false); err != nil {
		t.Fatal(err)
	}
	r.Settle(ctx, []admit.Ask{a}, nil, true)
	r.Register(a)
}

// hear tells of an alloc; started is zero while its tasks have not.
func (r *replica) hear(a admit.Ask, id, status string, created, started time.Time) {
	r.Index++
	r.Follower.Apply([]nomad.Change{{Alloc: &nomad.Alloc{Index: r.Index, ID: id, Namespace: a.Namespace, Job: a.JobID, Group: a.Group, NodeID: "id-m", NodeName: "m",
		Status: status, Created: created, Began: started}}}, r.Index)
}

// told are the spans that have arrived, but for those of requests: their names, in order
// of their start.
func told(collector *tracetest.Receiver) (names []string, spans []tracetest.Span) {
	for _, s := range collector.Spans() {
		if s.Name != "admission" {
			spans = append(spans, s)
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names, spans
}

// A job that waits is told of when it is placed and when it starts, once each, below its
// admission.
func TestWhatFollowsAnAdmissionIsTold(t *testing.T) {
	collector := tracetest.Start(t)
	r := newReplica(t, servicetest.New(t, "", servicetest.Machine("m", 1)), collector)
	a := servicetest.Ask("train", "4G", 1)
	admitted := r.Clock.At
	r.hear(a, "alloc-0", "running", admitted, admitted) // of an earlier job of that name
	r.Pass(time.Minute)
	r.submit(t, a)
	r.Pass(time.Hour)
	created := r.Clock.At
	r.Event(view.Event{At: created, Kind: "evict", Namespace: "other", JobID: "victim", AllocID: "alloc-v", For: "default/train"})
	r.Event(view.Event{At: created, Kind: "evict", Namespace: "other", JobID: "victim", AllocID: "alloc-w", For: "default/train", DryRun: true})
	r.Event(view.Event{At: created, Kind: "evict", AllocID: "alloc-x", For: "default/untraced"})
	r.Pass(time.Second)
	for range 2 { // news of the same comes more than once
		r.hear(a, "alloc-1", "pending", created, time.Time{})
	}
	started := created.Add(20 * time.Second)
	r.Pass(21 * time.Second)
	for range 2 {
		r.hear(a, "alloc-1", "running", created, started)
	}
	r.hear(a, "alloc-0", "running", admitted, admitted)
	r.Traces.Close()
	names, spans := told(collector)
	if want := []string{"eviction", "placement", "start", "wait"}; !slices.Equal(names, want) {
		t.Fatalf("told are %q, want %q", names, want)
	}
	admission := collector.Named("admission")[0]
	for _, s := range spans {
		if s.Parent != admission.ID || s.TraceID != admission.TraceID {
			t.Errorf("%s is not below the admission", s.Name)
		}
		took := map[string]time.Duration{"eviction": 0, "wait": time.Hour, "placement": time.Second, "start": 20 * time.Second}[s.Name]
		alloc := map[bool]string{true: "alloc-v", false: "alloc-1"}[s.Name == "eviction"]
		if s.End.Sub(s.Start) != took || s.Attributes["nomad.alloc.id"] != alloc {
			t.Errorf("%+v; want %s of %s", s, took, alloc)
		}
	}
	if wait := collector.Named("wait")[0].Attributes; wait["gpu.ask"] != "4G" || wait["nomad.node.name"] != "m" || wait["nomad.task_group"] != "g" {
		t.Errorf("the wait is of %v", wait)
	}
}

// The trace lies in the job's record: the next leader goes on with it, tells what came to
// be while none led, and gives what was told already the same ID.
func TestATraceSurvivesAFailover(t *testing.T) {
	collector := tracetest.Start(t)
	first := newReplica(t, servicetest.New(t, "", servicetest.Machine("m", 1)), collector)
	a, b, old := servicetest.Ask("train", "4G", 1), servicetest.Ask("next", "4G", 1), servicetest.Ask("old", "1G", 1)
	first.submit(t, old)
	first.Pass(time.Hour)
	first.submit(t, a)
	first.submit(t, b)
	created := first.Clock.At.Add(time.Second)
	first.Pass(time.Second)
	first.hear(a, "alloc-1", "pending", created, time.Time{})
	first.leads = false
	second := newReplica(t, servicetest.After(t, first.Service, 5*time.Second, "", servicetest.Machine("m", 1)), collector)
	second.leads = false
	for _, one := range []struct {
		of admit.Ask
		id string
		at time.Time
	}{{a, "alloc-1", created}, {b, "alloc-2", created}, {old, "alloc-old", created.Add(-30 * time.Minute)}} {
		second.Register(one.of)
		second.hear(one.of, one.id, "running", one.at, one.at)
		first.hear(one.of, one.id, "running", one.at, one.at) // it does not lead any more
	}
	if err := second.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	second.leads = true
	second.Lead()
	first.Traces.Close()
	second.Traces.Close()
	_, spans := told(collector)
	ids, count := map[string]int{}, map[string]int{}
	for _, s := range spans {
		ids[s.ID]++
		count[s.Name+" "+s.Attributes["nomad.alloc.id"]]++
	}
	for name, want := range map[string]int{
		"wait alloc-1": 2, "placement alloc-1": 2, "start alloc-1": 1, "wait alloc-2": 1, "placement alloc-2": 1, "start alloc-2": 1, "start alloc-old": 0,
	} {
		if count[name] != want {
			t.Errorf("%q was told %d times, want %d: %v", name, count[name], want, count)
		}
	}
	if len(ids) != 6 || len(spans) != 8 {
		t.Errorf("%d spans have %d IDs", len(spans), len(ids))
	}
}

// What is over is forgotten.
func TestEndedAllocsAreForgotten(t *testing.T) {
	collector := tracetest.Start(t)
	r := newReplica(t, servicetest.New(t, "", servicetest.Machine("m", 1)), collector)
	a := servicetest.Ask("train", "4G", 2)
	r.submit(t, a)
	at := r.Clock.At
	r.hear(a, "alloc-1", "complete", at, at) // between two news it started and ended
	r.hear(a, "alloc-2", "running", at, at)
	r.Follower.Apply([]nomad.Change{{AllocGone: "alloc-2"}}, r.Index+1)
	if len(r.told) != 0 {
		t.Errorf("kept are %v", r.told)
	}
	r.Traces.Close()
	if starts := collector.Named("start"); len(starts) != 2 {
		t.Errorf("starts %+v", starts)
	}
}
