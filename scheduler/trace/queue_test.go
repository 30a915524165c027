// SPDX-License-Identifier: MPL-2.0

package trace

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// collects is an exporter that waits until it is let go, and fails when it is told to.
type collects struct {
	free  chan struct{}
	fails atomic.Bool
	spans atomic.Int64
}

func (c *collects) ExportSpans(_ context.Context, spans []sdk.ReadOnlySpan) error {
	<-c.free
	if c.fails.Load() {
		return errors.New("no")
	}
	c.spans.Add(int64(len(spans)))
	return nil
}

func (c *collects) Shutdown(context.Context) error { return nil }

// Each span arrives or is counted, whether the collector is slow or refuses, and what was
// lost is said when some arrive again.
func TestWhatIsDroppedIsCounted(t *testing.T) {
	collector := &collects{free: make(chan struct{})}
	var failed []string
	var again []int
	q := newQueue(collector, Config{Failed: func(err error) { failed = append(failed, err.Error()) }, Again: func(lost int) { again = append(again, lost) }})
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(q))
	tracer := &Tracer{provider: provider, tracer: provider.Tracer(""), queue: q}
	tell := func(n int) {
		for range n {
			_, s := tracer.Begin(t.Context(), Decide)
			s.End()
		}
	}
	flush := func() {
		t.Helper()
		if err := provider.ForceFlush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	tell(maxSpans + 10)
	if tracer.Lost() != 10 {
		t.Errorf("lost %d of 10 above the bound", tracer.Lost())
	}
	close(collector.free)
	flush()
	if collector.spans.Load() != maxSpans || !slices.Equal(failed, []string{errFull.Error()}) || !slices.Equal(again, []int{10}) {
		t.Errorf("%d spans arrived; said %q and %v", collector.spans.Load(), failed, again)
	}
	collector.fails.Store(true)
	tell(2)
	flush()
	if tracer.Lost() != 12 || len(failed) != 2 || len(again) != 1 {
		t.Errorf("lost %d; said %q and %v", tracer.Lost(), failed, again)
	}
	collector.fails.Store(false)
	tell(1)
	flush()
	if tracer.Lost() != 12 || !slices.Equal(again, []int{10, 2}) {
		t.Errorf("lost %d; said %q and %v", tracer.Lost(), failed, again)
	}
	tracer.Close()
	if Off().Lost() != 0 {
		t.Error("a tracer that is off loses nothing")
	}
}
