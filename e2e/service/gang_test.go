// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestGangs runs trainings of four GPUs on six: what does not fit as a whole holds
// nothing, starts as one when there is room, and makes way as one for another.
func TestGangs(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 3)
	r := serve(ctx, t, c, quick)
	four := map[string]string{"gpu": "1", "gpu_gang": "true"}
	admitted(ctx, t, r, job{id: "first", kind: "batch", count: 4, meta: four})
	if err := submit(ctx, r.API, job{id: "second", kind: "batch", count: 4, meta: four}); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "first", 4)
	until(ctx, t, "say why the second waits", 20*time.Second, func() (bool, string) {
		_, _, text := r.ask(t, "GET", "/api/v1/gpu/cluster", "")
		if live := allocs(ctx, t, c.API, "default", "second"); len(live) > 0 {
			t.Fatalf("%d allocs of the second run beside the first", len(live))
		}
		return strings.Contains(string(text), "its 4 allocs start together, and there is room for 2"), string(text)
	})
	if err := c.Stop(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "second", 4)

	if err := submit(ctx, r.API, job{id: "high", kind: "batch", priority: 80, count: 4, meta: four}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	until(ctx, t, "make way as a whole", 60*time.Second, func() (bool, string) {
		second, high := len(allocs(ctx, t, c.API, "default", "second")), len(allocs(ctx, t, c.API, "default", "high"))
		if second > 0 && second < 4 && high > 2 {
			t.Fatalf("the victim holds %d GPUs beside %d", second, high)
		}
		return second == 0 && high == 4, fmt.Sprintf("%d of the victim, %d of the other", second, high)
	})
	runs(ctx, t, c.API, "high", 4)
	t.Logf("made way and started in %s", time.Since(began).Round(10*time.Millisecond))
	if err := c.Stop(ctx, "high"); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "second", 4)
	doubleBooked(ctx, t, c.API)
}
