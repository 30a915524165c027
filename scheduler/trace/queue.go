// SPDX-License-Identifier: MPL-2.0

package trace

import (
	"context"
	"errors"
	"sync/atomic"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// queue holds spans for the collector. OpenTelemetry's own queue drops spans that it has no
// room for without a word, so they are bounded here, and counted.
type queue struct {
	sdk.SpanProcessor
	waiting atomic.Int64 // and is being sent
	lost    atomic.Int64
}

// errFull is why spans are lost that the collector does not take in time.
var errFull = errors.New("more spans wait for the collector than there is room for")

func newQueue(exporter sdk.SpanExporter, c Config) *queue {
	q := &queue{}
	q.SpanProcessor = sdk.NewBatchSpanProcessor(&export{SpanExporter: exporter, config: c, queue: q},
		sdk.WithMaxQueueSize(maxSpans), sdk.WithBatchTimeout(batchInterval), sdk.WithExportTimeout(exportTimeout))
	return q
}

// OnEnd has a span wait for the collector, or drops it.
func (q *queue) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if q.waiting.Add(1) > maxSpans {
		q.waiting.Add(-1)
		q.lost.Add(1)
		return
	}
	q.SpanProcessor.OnEnd(s)
}

// export sends what waits, and tells once that spans are lost, and not each time. It is
// asked by one goroutine at a time.
type export struct {
	sdk.SpanExporter
	config  Config
	queue   *queue
	failing bool
	told    int64 // of those that were lost
}

// ExportSpans sends spans. Those that cannot be sent are lost.
func (e *export) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		e.queue.lost.Add(int64(len(spans)))
	}
	e.queue.waiting.Add(-int64(len(spans)))
	lost := e.queue.lost.Load()
	switch {
	case err == nil && lost > e.told && !e.failing: // dropped, while the collector is slow
		e.config.Failed(errFull)
		fallthrough
	case err == nil && e.failing:
		e.config.Again(int(lost - e.told))
		e.failing, e.told = false, lost
	case err != nil && !e.failing:
		e.config.Failed(err)
		e.failing = true
	}
	return nil
}
