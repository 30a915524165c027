// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// ask sends a request and returns the status and the body.
func (r *replica) ask(t *testing.T, method, path, body string) (int, http.Header, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil { // it does not listen yet
		return 0, nil, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, text
}

// TestREST asks for every operation of the API with the bodies that it promises
// to take, and for every way in which it may fail.
func TestREST(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "")
	admits(ctx, t, r)

	// The shapes that callers were promised, to the letter: no other fields.
	type utilization struct {
		GPU    *float64 `json:"gpu_utilization"`
		Memory *float64 `json:"gpu_memory_usage"`
	}
	type node struct {
		Name        string  `json:"node_name"`
		Type        string  `json:"gpu_type"`
		Available   int     `json:"available_gpus"`
		Memory      float64 `json:"memory_per_gpu"`
		Utilization float64 `json:"utilization"`
	}
	var status struct {
		Utilization utilization `json:"utilization"`
		Nodes       []node      `json:"available_nodes"`
		Total       int         `json:"total_nodes"`
		Timestamp   string      `json:"timestamp"`
	}
	code, _, text := r.ask(t, "GET", "/api/v1/gpu/status", "")
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&status); err != nil || code != http.StatusOK {
		t.Fatalf("status: %d %s: %v", code, text, err)
	}
	if _, err := time.Parse("2006-01-02T15:04:05", status.Timestamp); err != nil || status.Total != 1 || status.Utilization.GPU == nil || status.Utilization.Memory == nil {
		t.Errorf("status: %s", text)
	}
	if want := (node{"node-0", "T4", 2, 16, status.Nodes[0].Utilization}); len(status.Nodes) != 1 || status.Nodes[0] != want || !bytes.Contains(text, []byte(`"memory_per_gpu":16.0`)) {
		t.Errorf("status: %s", text)
	}

	for _, row := range []struct {
		name, method, path, body string
		status                   int
		has                      []string
	}{
		{"nodes", "GET", "/api/v1/gpu/nodes?gpu_type=T4&min_memory_gb=16", "", 200, []string{`"node_name":"node-0"`}},
		{"no such nodes", "GET", "/api/v1/gpu/nodes?gpu_type=V100&min_memory_gb=16", "", 200, []string{`[]`}},
		{"health", "GET", "/api/v1/gpu/health", "", 200, []string{`"status":"healthy"`}},
		{"monitoring", "GET", "/api/v1/gpu/monitoring", "", 200, []string{`"utilization":{"gpu_utilization":`, `"gpu_memory_usage":`}},
		{"never", "POST", "/api/v1/gpu/validate", `{"gpu_count":1,"gpu_type":"A100","memory_gb":80.0}`, 200, []string{`"valid":false`, `"reason":`}},
		{"valid", "POST", "/api/v1/gpu/validate", `{"gpu_count":2,"gpu_type":"T4","memory_gb":16.0}`, 200, []string{`"valid":true`, `"node_name":"node-0"`}},
		{"tensorflow", "POST", "/api/v1/gpu/setup-tensorflow", `{"gpu_count":1,"gpu_type":"V100","memory_gb":32.0,"gpu_memory_fraction":0.9}`, 200, []string{`"environment":{`, `"job_fragment":`}},
		{"pytorch", "POST", "/api/v1/gpu/setup-pytorch", `{"gpu_count":2,"gpu_type":"A100","memory_gb":80.0,"distributed_training":true}`, 200, []string{`"environment":{`, `WORLD_SIZE`}},
		{"allocate", "POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"gpu_type":"T4","memory_gb":16.0,"distributed_training":true,"mixed_precision":true}`, 200,
			[]string{`"success":true,"node_name":"node-0","gpu_config":{"gpu_count":1,"gpu_type":"T4","memory_gb":16.0,"distributed_training":true}`, `"reservation_id":"r-`, `"expires_at":`}},
		{"list", "GET", "/api/v1/gpu/reservations", "", 200, []string{`"reservation_id":"r-`}},
		{"cluster", "GET", "/api/v1/gpu/cluster", "", 200, []string{`"nodes":[`}},
		{"document", "GET", "/api/v1/openapi.json", "", 200, []string{`"/api/v1/gpu/allocate"`}},
		{"alive", "GET", "/healthz", "", 200, nil},
		{"ready", "GET", "/readyz", "", 200, nil},

		{"none of this type", "POST", "/api/v1/gpu/allocate", `{"gpu_count":2,"gpu_type":"V100","memory_gb":32.0}`, 422, []string{`"details":[`}},
		{"no room", "POST", "/api/v1/gpu/allocate", `{"gpu_count":2,"gpu_type":"T4"}`, 409, []string{`"details":[`}},
		{"slip", "POST", "/api/v1/gpu/allocate", `{"gpus":2}`, 400, []string{"gpus"}},
		{"not a number", "POST", "/api/v1/gpu/validate", `{"gpu_count":"two"}`, 400, []string{"gpu_count"}},
		{"none", "POST", "/api/v1/gpu/validate", `{"gpu_count":0}`, 400, []string{"gpu_count 0"}},
		{"cut off", "POST", "/api/v1/gpu/validate", `{"gpu_count":1`, 400, nil},
		{"grammar", "POST", "/api/v1/gpu/validate", `{"request":"8GB"}`, 400, []string{"column"}},
		{"too long", "POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"ttl_seconds":99999999}`, 400, []string{"ttl_seconds"}},
		{"validate in a namespace that is not there", "POST", "/api/v1/gpu/validate", `{"gpu_count":1,"namespace":"typo"}`, 404, []string{`no such namespace: \"typo\"`}},
		{"allocate in a namespace that is not there", "POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"namespace":"typo"}`, 404, []string{`no such namespace: \"typo\"`}},
		{"a queue that is not there", "POST", "/api/v1/gpu/allocate", `{"gpu_count":1,"queue":"typo"}`, 403, []string{`does not exist`}},
		{"no such reservation", "DELETE", "/api/v1/gpu/reservations/r-none", "", 404, []string{"r-none"}},
		{"no such operation", "GET", "/api/v1/gpu/none", "", 404, []string{"openapi.json"}},
		{"wrong method", "GET", "/api/v1/gpu/allocate", "", 405, []string{"POST"}},
		{"unknown parameter", "GET", "/api/v1/gpu/nodes?type=T4", "", 400, []string{"gpu_type"}},
	} {
		code, header, text := r.ask(t, row.method, row.path, row.body)
		if code != row.status || !strings.HasPrefix(header.Get("Content-Type"), "application/json") {
			t.Errorf("%s: %d %s, want %d: %s", row.name, code, header.Get("Content-Type"), row.status, text)
		}
		for _, has := range row.has {
			if !bytes.Contains(text, []byte(has)) {
				t.Errorf("%s: %s does not hold %s", row.name, text, has)
			}
		}
		failed(t, row.name, code, text)
	}

	// One that has never seen Nomad says so, and when to come again.
	blind := serveWith(ctx, t, c, launch{nomad: "http://" + freeAddress(t)})
	until(ctx, t, "have the blind one say so", 20*time.Second, func() (bool, string) {
		code, header, text := blind.ask(t, "GET", "/api/v1/gpu/status", "")
		if code != 0 {
			failed(t, "blind", code, text)
		}
		return code == http.StatusServiceUnavailable && header.Get("Retry-After") != "" && bytes.Contains(text, []byte("no view of the cluster")), string(text)
	})
	if code, _, text := blind.ask(t, "GET", "/readyz", ""); code != http.StatusServiceUnavailable {
		t.Errorf("a blind one is ready: %d %s", code, text)
	}
}

// failed checks the body of every error.
func failed(t *testing.T, name string, code int, text []byte) {
	t.Helper()
	if code < 400 {
		return
	}
	var body struct {
		Success *bool
		Error   string
	}
	if err := json.Unmarshal(text, &body); err != nil || body.Success == nil || *body.Success || body.Error == "" {
		t.Errorf("%s: the error is %s", name, text)
	}
}
