// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Nomad's own batch queues are found in node pools with GPUs, with those who stand in them, and
// forgotten when they go; while Nomad does not answer, what was found stays.
func TestBatchQueuesOfPoolsWithGPUsAreFound(t *testing.T) {
	// As Nomad 2.1's page of the route says: a pool without a queue is of the type passthrough.
	answers := map[string]string{
		"a": `{"Type":"fifo","Workloads":[{"ID":"x"},{"ID":"y"}]}`,
		"b": `{"Type":"passthrough","Workloads":[]}`,
		"c": `{"Type":"dynamic-priority","Workloads":[]}`,
	}
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status != http.StatusOK || r.URL.Path != nomad.BatchQueuesPath || r.URL.Query().Get("namespace") != "*" {
			http.Error(w, "no", status)
			return
		}
		fmt.Fprint(w, answers[r.URL.Query().Get("node_pool")])
	}))
	defer server.Close()
	client, err := api.NewClient(&api.Config{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	p := &pools{withGPUs: func() []string { return []string{"a", "b", "c"} }, ask: nomad.NewClient(client).BatchQueue, logger: hclog.NewNullLogger()}
	both := []view.BatchQueue{{Pool: "a", Type: "fifo", Jobs: 2}, {Pool: "c", Type: "dynamic-priority"}}
	for _, step := range []struct {
		name   string
		status int
		a      string
		want   []view.BatchQueue
	}{
		{"found", 200, answers["a"], both},
		{"Nomad fails", 500, answers["a"], both},
		{"one is removed", 200, answers["b"], both[1:]},
		{"Nomad before 2.1", 404, answers["a"], nil},
	} {
		status, answers["a"] = step.status, step.a
		p.look(t.Context())
		if got := p.queues(); !slices.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}
