// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Of two jobs that wait the shorter goes first, though it came later, and explain and plan tell until
// when shorter work does.
func TestTheShortestGoesFirst(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "fairness {\n  order = \"shortest\"\n}\n")
	both := func(id, limit string) job {
		return job{id: id, kind: "batch", meta: map[string]string{"gpu": "2", "gpu_time_limit": limit}}
	}
	admitted(ctx, t, r, both("first", "1h"))
	runs(ctx, t, c.API, "first", 1)
	admitted(ctx, t, r, both("long", "4h"))
	until(ctx, t, "have the long job wait", 20*time.Second, func() (bool, string) {
		var shown struct{ Pending []struct{ Reason string } }
		_, err := r.API.Raw().Query("/api/v1/gpu/cluster", &shown, nil)
		return err == nil && len(shown.Pending) == 1, fmt.Sprint(err, shown.Pending)
	})
	admitted(ctx, t, r, both("short", "10m"))
	home := t.TempDir()
	file := filepath.Join(home, "middle.hcl")
	write(t, file, `job "middle" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "sleep"
      }
      meta {
        gpu            = "2"
        gpu_time_limit = "1h"
      }
    }
  }
}
`)
	for _, args := range [][]string{{"explain", "long"}, {"plan", file}} {
		until(ctx, t, "tell it by "+args[0], 40*time.Second, func() (bool, string) {
			_, stdout, stderr := scheduler(ctx, t, home, r.URL, args...)
			return strings.Contains(stdout, "before which shorter work goes that comes until"), stdout + stderr
		})
	}
	if _, _, err := c.API.Jobs().Deregister("first", false, nil); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "short", 1)
	if live := allocs(ctx, t, c.API, "", "long"); len(live) != 0 {
		t.Errorf("the long job has %d allocs beside the short one", len(live))
	}
	doubleBooked(ctx, t, c.API)
}
