// SPDX-License-Identifier: MPL-2.0

package trace

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/leaktest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/trace/tracetest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func tracer(t *testing.T, c Config) *Tracer {
	t.Helper()
	if c.Failed == nil {
		c.Failed = func(err error) { t.Errorf("spans are lost: %v", err) }
	}
	if c.Again == nil {
		c.Again = func(int) {}
	}
	tr, err := New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

const client, clientsTrace, clientsSpan = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

func request(traceparent string) *http.Request {
	r := httptest.NewRequest("PUT", "/v1/jobs", nil)
	if traceparent != "" {
		r.Header.Set("Traceparent", traceparent)
	}
	return r
}

// The request's span is below the client's, what it does below the request's, and what
// comes later too; another replica that tells of the same gives it the same ID.
func TestSpansReachACollector(t *testing.T) {
	collector := tracetest.Start(t)
	tr := tracer(t, Config{Endpoint: collector.URL, Ratio: 0}) // the client has decided
	began := time.Now().Add(-time.Second)
	ctx, admission := tr.Request(request(client), began)
	_, decide := tr.Begin(ctx, Decide)
	decide.Set("gpu.ask", strings.Repeat("x", 1000))
	decide.Set("gpu.queue", "not UTF-8: \xff")
	decide.End()
	parent := Parent(ctx)
	admission.End()
	other := tracer(t, Config{Endpoint: collector.URL, Ratio: 0})
	for _, replica := range []*Tracer{tr, other} {
		replica.Later(parent, Start, "alloc-1", began, began.Add(time.Minute), map[string]string{"nomad.alloc.id": "alloc-1"})
		replica.Later(parent, Start, "alloc-2", began, began.Add(-time.Minute), nil)
		replica.Later("nonsense", Start, "alloc-3", began, began, nil)
		replica.Close()
	}
	all := collector.Spans()
	if len(all) != 6 {
		t.Fatalf("%d spans: %+v", len(all), all)
	}
	admissions := collector.Named("admission")
	for _, s := range all {
		if s.TraceID != clientsTrace || s.Service != "nomad-gpu-scheduler" || s.End.Before(s.Start) {
			t.Errorf("span %+v", s)
		}
		if want := map[bool]string{true: clientsSpan, false: admissions[0].ID}[s.Name == "admission"]; s.Parent != want {
			t.Errorf("%s is below %s, want %s", s.Name, s.Parent, want)
		}
	}
	if !admissions[0].Start.Equal(began.Truncate(0)) || !strings.Contains(parent, admissions[0].ID) {
		t.Errorf("the admission is %+v, its name %s", admissions[0], parent)
	}
	if d := collector.Named("decide")[0].Attributes; len(d["gpu.ask"]) != maxAttribute || d["gpu.queue"] != "not UTF-8: \uFFFD" {
		t.Errorf("attributes %q", d)
	}
	starts := map[string]int{}
	for _, s := range collector.Named("start") {
		starts[s.ID]++
	}
	if len(starts) != 2 {
		t.Errorf("two starts, told by two replicas, have the IDs %v", starts)
	}
}

// Nothing is kept of a trace that is not sampled, nor when traces are off: then what a
// client says of itself is nothing to the service either.
func TestWhatIsNotTraced(t *testing.T) {
	collector := tracetest.Start(t)
	on := tracer(t, Config{Endpoint: collector.URL, Ratio: 0})
	for name, tc := range map[string]struct {
		tracer *Tracer
		header string
	}{
		"off": {Off(), client}, "not drawn": {on, ""}, "not sampled": {on, strings.TrimSuffix(client, "01") + "00"}, "malformed": {on, "00-xyz"},
	} {
		ctx, s := tc.tracer.Request(request(tc.header), time.Now())
		s.End()
		if parent := Parent(ctx); parent != "" {
			t.Errorf("%s: what follows would be below %s", name, parent)
		}
		tc.tracer.Later("", Start, "a", time.Now(), time.Now(), nil)
	}
	h := http.Header{}
	Off().Pass(context.Background(), h)
	if Off().Later(client, Start, "a", time.Now(), time.Now(), nil); len(h) != 0 {
		t.Errorf("headers %v", h)
	}
	Off().Close()
	on.Close()
	if all := collector.Spans(); len(all) != 0 {
		t.Errorf("spans %+v", all)
	}
}

// A collector that takes connections and never answers costs a bounded amount of memory,
// no time, and one line in the log.
func TestACollectorThatIsAwayHoldsNothingUp(t *testing.T) {
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	var failed atomic.Int32
	tr := tracer(t, Config{Endpoint: "http://" + dead.Addr().String() + "/v1/traces", Ratio: 1, Failed: func(error) { failed.Add(1) }})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 4 * maxSpans {
			_, s := tr.Request(request(""), time.Now())
			s.End()
		}
		tr.Close()
	}()
	select {
	case <-done:
	case <-time.After(10 * exportTimeout): // waiting for the collector once for each batch takes longer
		t.Error("a collector that does not answer holds the service up")
	}
	if lost := tr.Lost(); lost < 3*maxSpans {
		t.Errorf("only %d lost spans are counted", lost)
	}
	if failed.Load() > 1 {
		t.Errorf("it was said %d times that spans are lost", failed.Load())
	}
}

// An outage is said once, and its end, with how many spans were lost.
func TestAnOutageIsSaidOnce(t *testing.T) {
	collector := tracetest.Start(t)
	var failed, lost atomic.Int32
	tr := tracer(t, Config{Endpoint: collector.URL, Ratio: 1, Failed: func(error) { failed.Add(1) }, Again: func(n int) { lost.Store(int32(n)) }})
	tell := func() {
		_, s := tr.Request(request(""), time.Now())
		s.End()
		if err := tr.provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	collector.Refuse(http.StatusForbidden)
	tell()
	tell()
	tell()
	if failed.Load() != 1 || lost.Load() != 0 {
		t.Errorf("failed %d times, lost %d", failed.Load(), lost.Load())
	}
	collector.Refuse(0)
	tell()
	if failed.Load() != 1 || lost.Load() != 3 || len(collector.Spans()) != 1 {
		t.Errorf("failed %d times, lost %d, arrived %d", failed.Load(), lost.Load(), len(collector.Spans()))
	}
}
