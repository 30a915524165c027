// SPDX-License-Identifier: MPL-2.0

// Package tracetest is a collector of OpenTelemetry for tests: it takes traces over OTLP
// and HTTP.
package tracetest

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one that arrived. IDs are in hexadecimal.
type Span struct {
	TraceID, ID, Parent, Name string
	Start, End                time.Time
	Attributes                map[string]string
	Service                   string
}

// Receiver keeps what arrives.
type Receiver struct {
	URL string

	mu     sync.Mutex
	more   chan struct{} // closed when something has arrived
	spans  []Span
	bodies bytes.Buffer
	status int
}

// Start serves until the test ends.
func Start(t testing.TB) *Receiver {
	t.Helper()
	r := &Receiver{more: make(chan struct{})}
	server := httptest.NewServer(r)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	r.URL = server.URL + "/v1/traces"
	return r
}

// Refuse answers everything with a status from now on; 0: nothing is refused.
func (r *Receiver) Refuse(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := read(request)
	var sent collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &sent)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.status != 0:
		w.WriteHeader(r.status)
		return
	case err != nil || request.URL.Path != "/v1/traces" || request.Header.Get("Content-Type") != "application/x-protobuf":
		http.Error(w, "not OTLP", http.StatusBadRequest)
		return
	}
	r.bodies.Write(body)
	r.keep(&sent)
	close(r.more)
	r.more = make(chan struct{})
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func read(request *http.Request) ([]byte, error) {
	in := io.Reader(request.Body)
	if request.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = z
	}
	return io.ReadAll(in)
}

func (r *Receiver) keep(sent *collector.ExportTraceServiceRequest) {
	for _, from := range sent.ResourceSpans {
		service := ""
		for _, a := range from.GetResource().GetAttributes() {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range from.ScopeSpans {
			for _, s := range scope.Spans {
				span := Span{TraceID: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId), Name: s.Name, Service: service,
					Start: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)), Attributes: map[string]string{}}
				for _, a := range s.Attributes {
					span.Attributes[a.Key] = a.Value.GetStringValue()
				}
				r.spans = append(r.spans, span)
			}
		}
	}
}

// Spans are those that have arrived.
func (r *Receiver) Spans() []Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Span(nil), r.spans...)
}

// Named are those of a name.
func (r *Receiver) Named(name string) (found []Span) {
	for _, s := range r.Spans() {
		if s.Name == name {
			found = append(found, s)
		}
	}
	return found
}

// Sent is every byte that has arrived.
func (r *Receiver) Sent() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bodies.String()
}

// Wait waits until something has arrived that holds.
func (r *Receiver) Wait(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for limit := time.After(time.Minute); ; {
		r.mu.Lock()
		more := r.more
		r.mu.Unlock()
		if holds() {
			return
		}
		select {
		case <-more:
		case <-limit:
			t.Fatalf("%s has not arrived, but %+v", what, r.Spans())
		}
	}
}
