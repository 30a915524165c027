// SPDX-License-Identifier: MPL-2.0

package service

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
)

// A job that says it needs a month to stop is waited for no longer than any other: it is evicted where
// nothing better is, and then without its shutdown_delay.
func TestALongShutdownDelayHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, quick)
	admitted(ctx, t, r, job{id: "quick", priority: 20, meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "quick", 1)
	slow := job{id: "slow", priority: 20, meta: map[string]string{"gpu": "1"}}.api() // the younger
	slow.TaskGroups[0].Tasks[0].ShutdownDelay = 720 * time.Hour
	if _, _, err := r.API.Jobs().Register(slow, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "slow", 1)
	admitted(ctx, t, r, job{id: "first", priority: 60, meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "first", 1)
	if live := allocs(ctx, t, c.API, "default", "slow"); len(live) != 1 {
		t.Error("the slow one has gone first")
	}
	admitted(ctx, t, r, job{id: "second", priority: 60, meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "second", 1)
	doubleBooked(ctx, t, c.API)
}
