// SPDX-License-Identifier: MPL-2.0

package service

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestServes asks for everything that the service serves beside Nomad's API.
func TestServes(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "monitor_update_interval = \"2s\"\n")
	admitted(ctx, t, r, job{id: "first", meta: map[string]string{"gpu": "4G"}})
	runs(ctx, t, c.API, "first", 1)
	get := func(path string) (int, string) {
		resp, err := http.Get(r.URL + path)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	for path, says := range map[string]string{
		"/healthz":               "",
		"/readyz":                "",
		"/metrics":               "nomad_gpu_decision_duration_seconds",
		"/gpu/":                  "<html",
		"/api/v1/gpu/status":     "available_nodes",
		"/api/v1/gpu/nodes":      "node-0",
		"/api/v1/gpu/monitoring": "gpu_memory_usage",
		"/v1/status/leader":      "127.0.0.1",
		"/ui/":                   "",
	} {
		if status, text := get(path); status != http.StatusOK || !strings.Contains(text, says) {
			t.Errorf("GET %s: %d %.200s", path, status, text)
		}
	}
	// Utilization comes from Nomad's own client statistics.
	until(ctx, t, "see a measurement", 30*time.Second, func() (bool, string) {
		_, text := get("/api/v1/gpu/cluster")
		var picture struct {
			Nodes []struct {
				GPUs []struct {
					Measured struct{ Milli, MemoryMiB int64 } `json:"measured"`
					Holders  []struct {
						JobID string `json:"job_id"`
					} `json:"holders"`
				} `json:"gpus"`
			} `json:"nodes"`
		}
		if err := json.Unmarshal([]byte(text), &picture); err != nil {
			return false, err.Error()
		}
		for _, g := range picture.Nodes[0].GPUs {
			if g.Measured.Milli >= 0 && len(g.Holders) == 1 && g.Holders[0].JobID == "first" {
				return true, ""
			}
		}
		return false, text
	})
}
