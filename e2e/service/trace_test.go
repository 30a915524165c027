// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/trace/tracetest"
)

// TestTraces follows a job from its submission by a client that traces to the start of
// its task, in a collector of OpenTelemetry.
func TestTraces(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	collector := tracetest.Start(t)
	r := serve(ctx, t, c, fmt.Sprintf("telemetry {\n  traces {\n    endpoint = %q\n  }\n}\n", collector.URL))
	admits(ctx, t, r)
	const parent, trace, caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	traced := job{id: "traced", meta: map[string]string{"gpu": "1G"}}.api()
	traced.TaskGroups[0].Tasks[0].Env = map[string]string{"PASSWORD": "hunter2-s3cr3t"}
	body, err := json.Marshal(map[string]any{"Job": traced})
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, r.URL+"/v1/jobs", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("traceparent", parent)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("the job was answered with %s", answer.Status)
	}
	alloc := runs(ctx, t, c.API, "traced", 1)[0]
	collector.Wait(t, "the start", func() bool { return len(collector.Named("start")) > 0 })
	collector.Wait(t, "the admission", func() bool { return len(collector.Named("admission")) > 0 })
	admission := collector.Named("admission")[0]
	if admission.Parent != caller || admission.Attributes["gpu.outcome"] != "placed" || admission.Attributes["nomad.job.id"] != "traced" {
		t.Errorf("the admission is %+v", admission)
	}
	for _, name := range []string{"decide", "register", "wait", "placement", "start"} {
		spans := collector.Named(name)
		if len(spans) != 1 || spans[0].TraceID != trace || spans[0].Parent != admission.ID || spans[0].End.Before(spans[0].Start) {
			t.Errorf("%s: %+v", name, spans)
		}
	}
	if s := collector.Named("start")[0]; s.Attributes["nomad.alloc.id"] != alloc.ID || s.Attributes["nomad.node.name"] != "node-0" {
		t.Errorf("the start is %+v", s)
	}
	if strings.Contains(collector.Sent(), "hunter2") {
		t.Error("a secret of the job was sent to the collector")
	}
}
