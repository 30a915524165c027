// SPDX-License-Identifier: MPL-2.0

package service

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// evictsIdle is a queue for whose idle work no GPU stays dark.
const evictsIdle = quick + `
monitor_update_interval = "1s"
queue "all" {
  namespaces  = ["default"]
  idle_after  = "5s"
  idle_action = "evict"
}
`

// A job that holds GPUs and uses nothing is told of, and goes on, until another waits that
// gets its place, of lower priority too. It does not have that one evicted to come back.
func TestIdleWorkIsToldAndGoesForWhatWaits(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, evictsIdle)
	admitted(ctx, t, r, job{id: "idle", priority: 70, meta: map[string]string{"gpu": "2"}})
	idle := runs(ctx, t, c.API, "idle", 1)[0].ID
	until(ctx, t, "tell of the idle job", time.Minute, func() (bool, string) {
		code, text, problem := scheduler(ctx, t, t.TempDir(), r.URL, "idle", "-json")
		var report view.IdleReport
		if code != 0 || json.Unmarshal([]byte(text), &report) != nil {
			return false, fmt.Sprint(code, text, problem)
		}
		return len(report.Idle) == 2 && report.Idle[0].JobID == "idle" && report.Idle[0].Action == "evict" && report.Milli == 2000, text
	})
	if live := allocs(ctx, t, c.API, "default", "idle"); len(live) != 1 || live[0].ID != idle {
		t.Fatal("it had to go for nothing")
	}
	admitted(ctx, t, r, job{id: "waits", priority: 20, meta: map[string]string{"gpu": "1"}})
	runs(ctx, t, c.API, "waits", 1)
	var shown view.Cluster
	until(ctx, t, "say why", time.Minute, func() (bool, string) {
		if _, err := r.API.Raw().Query("/api/v1/gpu/cluster", &shown, nil); err != nil {
			return false, err.Error()
		}
		told := ""
		for _, e := range shown.Events {
			told += e.Kind + ": " + e.Text + "\n"
		}
		return strings.Contains(told, fmt.Sprintf("idle: default/idle (priority 70, alloc %.8s) must leave node node-0: it has not used its GPUs since", idle)) &&
			strings.Contains(told, `(queue all: idle_after 5s, idle_action "evict"), and job default/waits waits for 1`), told
	})
	// It has the higher priority, and waits until the other ends.
	until(ctx, t, "have it wait", time.Minute, func() (bool, string) {
		if _, err := r.API.Raw().Query("/api/v1/gpu/cluster", &shown, nil); err != nil {
			return false, err.Error()
		}
		for _, p := range shown.Pending {
			if p.JobID == "idle" && shown.At.Sub(p.Since) > 10*time.Second {
				return true, ""
			}
		}
		return false, fmt.Sprintf("%+v", shown.Pending)
	})
	if live := allocs(ctx, t, c.API, "default", "waits"); len(live) != 1 || live[0].ClientStatus != "running" {
		t.Errorf("job waits had to go: %+v", live)
	}
	doubleBooked(ctx, t, c.API)
	if err := c.Stop(ctx, "waits"); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "idle", 1)
}
