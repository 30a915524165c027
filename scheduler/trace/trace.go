// SPDX-License-Identifier: MPL-2.0

// Package trace tells a collector of OpenTelemetry, over OTLP and HTTP, how a job was
// admitted and how it came to run:
//
//	admission            the request, from a client's own span if it names one
//	├─ hand over         to the replica that leads, whose admission is below this
//	├─ decide            where it goes, and the writing down of that
//	├─ register          Nomad takes it
//	├─ wait              until Nomad created an allocation, for each
//	├─ eviction          of another's allocation, to make room
//	├─ placement         until the service saw that allocation
//	└─ start             until its tasks ran
//
// What follows the request is sent by whichever replica leads then: the trace is in the
// job's record. Such a span has the same ID, whichever replica sends it.
//
// A collector that does not answer holds nothing up. A bounded number of spans waits for
// it, and those beyond are dropped.
package trace

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	otel "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Name is what a span is of.
type Name string

// The spans.
const (
	Admission Name = "admission"
	HandOver  Name = "hand over"
	Decide    Name = "decide"
	Register  Name = "register"
	Wait      Name = "wait"
	Eviction  Name = "eviction"
	Placement Name = "placement"
	Start     Name = "start"
)

// Bounds of what waits for a collector.
const (
	maxSpans      = 4096
	batchInterval = 2 * time.Second
	exportTimeout = 10 * time.Second
	// lastTimeout is what a service that stops has for the spans that are left.
	lastTimeout = 2 * time.Second
	// maxAttribute is how long a value may be.
	maxAttribute = 256
)

// Config says where traces go.
type Config struct {
	// Endpoint is the URL of the collector, TLS how to speak to it; nil for the system's
	// roots. Headers, such as a token, come from OTEL_EXPORTER_OTLP_HEADERS.
	Endpoint string
	TLS      *tls.Config
	// Ratio is how many of the traces that no client began are kept, 0 to 1.
	Ratio float64
	// Version is the program's, Instance which replica it is.
	Version, Instance string
	// Failed is told once that spans are lost, and why; Again once that they arrive again,
	// and how many were lost meanwhile.
	Failed func(err error)
	Again  func(lost int)
}

// Tracer begins spans. That of Off exports none.
type Tracer struct {
	provider *sdk.TracerProvider // nil: off
	tracer   otel.Tracer
	queue    *queue // nil: off
}

// Off is a tracer that does nothing.
func Off() *Tracer { return &Tracer{tracer: noop.NewTracerProvider().Tracer("")} }

// New returns a tracer that exports until Close. It does not wait for the collector.
func New(ctx context.Context, c Config) (*Tracer, error) {
	options := []otlptracehttp.Option{
		otlptracehttp.WithEndpointURL(c.Endpoint), otlptracehttp.WithTimeout(exportTimeout),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: time.Second, MaxInterval: 5 * time.Second, MaxElapsedTime: exportTimeout}),
	}
	if c.TLS != nil {
		options = append(options, otlptracehttp.WithTLSClientConfig(c.TLS))
	}
	exporter, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("export traces to %s: %w", c.Endpoint, err)
	}
	about, err := resource.New(ctx, resource.WithFromEnv(), resource.WithAttributes(attribute.String("service.name", "nomad-gpu-scheduler"),
		attribute.String("service.version", c.Version), attribute.String("service.instance.id", c.Instance)))
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	limits := sdk.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxAttribute
	q := newQueue(exporter, c)
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(q),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(c.Ratio))), sdk.WithIDGenerator(ids{}), sdk.WithResource(about), sdk.WithRawSpanLimits(limits))
	return &Tracer{provider: provider, tracer: provider.Tracer("github.com/nomad-gpu/nomad-gpu/scheduler"), queue: q}, nil
}

// Lost is how many spans were lost since the service started: because the collector took
// none, or because too many waited for it.
func (t *Tracer) Lost() int64 {
	if t.queue == nil {
		return 0
	}
	return t.queue.lost.Load()
}

// Close exports the rest, for a moment.
func (t *Tracer) Close() {
	if t.provider == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastTimeout)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // Failed has heard of lost spans
}

// On reports whether traces are exported.
func (t *Tracer) On() bool { return t.provider != nil }

// Request begins the span of a request that arrived at a time, below that of the client
// if it names one (traceparent, of W3C's Trace Context).
func (t *Tracer) Request(r *http.Request, began time.Time) (context.Context, *Span) {
	ctx := r.Context()
	if t.On() {
		ctx = extract(ctx, propagation.HeaderCarrier(r.Header))
	}
	ctx, s := t.tracer.Start(ctx, string(Admission), otel.WithSpanKind(otel.SpanKindServer), otel.WithTimestamp(began))
	return ctx, &Span{s}
}

func extract(ctx context.Context, c propagation.TextMapCarrier) context.Context {
	return propagation.TraceContext{}.Extract(ctx, c)
}

// Begin begins a span below that of the context.
func (t *Tracer) Begin(ctx context.Context, name Name) (context.Context, *Span) {
	ctx, s := t.tracer.Start(ctx, string(name))
	return ctx, &Span{s}
}

// Pass names the context's span to another replica.
func (t *Tracer) Pass(ctx context.Context, h http.Header) {
	if t.On() {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	}
}

// Parent names the context's span, for Later: a traceparent, empty where there is none
// or it is not kept.
func Parent(ctx context.Context) string {
	if !otel.SpanFromContext(ctx).IsRecording() {
		return ""
	}
	c := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, c)
	return c.Get("traceparent")
}

// Later exports a span of something that is over, below a parent. The subject tells it
// apart from other spans of its name in the trace.
func (t *Tracer) Later(parent string, name Name, subject string, from, to time.Time, attributes map[string]string) {
	ctx := extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
	if !t.On() || !otel.SpanContextFromContext(ctx).IsValid() {
		return
	}
	if to.Before(from) { // two machines' clocks
		to = from
	}
	ctx = context.WithValue(ctx, subjectKey{}, string(name)+"\x00"+subject)
	_, s := t.tracer.Start(ctx, string(name), otel.WithTimestamp(from))
	for key, value := range attributes {
		(&Span{s}).Set(key, value)
	}
	s.End(otel.WithTimestamp(to))
}

// Span is something that takes time.
type Span struct{ span otel.Span }

// Set says something of it. Values are names, numbers and outcomes: never what a token,
// a variable or a job's file may hold.
func (s *Span) Set(key, value string) {
	if value != "" {
		s.span.SetAttributes(attribute.String(key, strings.ToValidUTF8(value, "\uFFFD")))
	}
}

// Number says a number of it.
func (s *Span) Number(key string, value int) { s.span.SetAttributes(attribute.Int(key, value)) }

// End ends it.
func (s *Span) End() { s.span.End() }

// subjectKey is where Later leaves what the ID of a span is made of.
type subjectKey struct{}

// ids makes the IDs of traces and spans.
type ids struct{}

// NewIDs makes those of a trace and its first span, at random.
func (i ids) NewIDs(ctx context.Context) (t otel.TraceID, s otel.SpanID) {
	for !t.IsValid() {
		_, _ = rand.Read(t[:]) // never fails
	}
	return t, i.NewSpanID(ctx, t)
}

// NewSpanID makes that of a span: at random, or of what the span is about.
func (ids) NewSpanID(ctx context.Context, t otel.TraceID) (s otel.SpanID) {
	if subject, ok := ctx.Value(subjectKey{}).(string); ok {
		sum := sha256.Sum256(append(t[:], subject...))
		copy(s[:], sum[:])
	}
	for !s.IsValid() {
		_, _ = rand.Read(s[:])
	}
	return s
}
