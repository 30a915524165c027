// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/internal/terminal/pty"
	rest "github.com/nomad-gpu/nomad-gpu/scheduler/server/api"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// placement answers as the placement service does, and keeps what it was sent.
type placement struct {
	sent map[string]string // body by method and path
}

func (p *placement) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.sent[r.Method+" "+r.URL.String()] = string(body)
	groups := `"GPUGroups":[{"group":"g","queue":"ml","ask":"8G,0.5","count":2,"preferred":["11111111-2222","99999999-0000"],"why":["goes to gpu-1 (nvidia/slice/A100/0): 2 of 3 whole GPUs there stay free"]}]`
	switch r.URL.Path {
	case "/v1/jobs/parse":
		fmt.Fprint(w, `{"ID":"train","Namespace":"research","Future":1.50}`)
	case "/v1/jobs":
		fmt.Fprint(w, `{"EvalID":"0123456789","JobModifyIndex":7,`+groups+`}`)
	case "/v1/job/train/plan":
		fmt.Fprint(w, `{"JobModifyIndex":7,"Diff":{"Type":"Edited"},"FailedTGAllocs":{"g":{"NodesEvaluated":3,"ConstraintFiltered":{"kernel":2},"DimensionExhausted":{"devices":1}}},`+groups+`}`)
	case "/v1/nodes":
		fmt.Fprint(w, `[{"ID":"11111111-2222","Name":"gpu-1"}]`)
	case ledgerPath:
		if r.URL.Query().Get("format") == "csv" {
			fmt.Fprint(w, "queue,gpu_hours\nml,1\n")
			return
		}
		fmt.Fprintf(w, `{"from":"2026-10-01T00:00:00Z","to":"2026-11-01T00:00:00Z","by":%q,"currency":"EUR","total":{"gpu_hours":12.5,"gib_hours":200,"cost":31.25},"rows":[`+
			`{"queue":"ml","namespace":"research","job":"train","group":"g","task":"t","entries":3,"gpu_hours":12.5,"gib_hours":200,"cost":31.25,"asked_gpus":0.5,"asked_gib":16,"used_gpus":{"mean":0.1,"p50":0.1,"p95":0.12,"max":0.4},"used_gib":{"mean":3,"p50":3,"p95":3.2,"max":4}},`+
			`{"entries":1}]}`, r.URL.Query().Get("by"))
	case ledgerPath + "/advice":
		fmt.Fprint(w, `{"advice":[{"namespace":"research","job":"train","group":"g","task":"t","asked":"16G,0.5","enough":"5G,0.15","freed_gpu_hours":3.5,"freed_gib_hours":110,"text":"asked for 16G,0.5; 5G,0.15 would do"}]}`)
	case idlePath:
		after, _ := time.ParseDuration(r.URL.Query().Get("for"))
		text, _ := json.Marshal(picture().IdleReport(after))
		_, _ = w.Write(text)
	case eventsPath:
		switch r.URL.Query().Get("job") {
		case "other":
		case "held":
			http.Error(w, "Nomad does not answer", http.StatusBadGateway)
			return
		default:
			http.NotFound(w, r) // as of an earlier release
			return
		}
		long := view.Event{At: time.Date(2025, 12, 1, 3, 4, 5, 0, time.UTC), Kind: "move", Namespace: "default", JobID: "other", AllocID: "eeeeeeee-ffff", Text: "other went to gpu-1 long ago"}
		text, _ := json.Marshal(rest.JobEvents{Events: append(slices.Clone(picture().Events), long)})
		_, _ = w.Write(text)
	case clusterPath:
		text, _ := json.Marshal(picture())
		_, _ = w.Write(text)
	default:
		http.Error(w, "group \"g\" asks for 9, which no node can ever hold\n  3 nodes: other model", http.StatusUnprocessableEntity)
	}
}

// picture is a small cluster with something of everything.
func picture() *view.Cluster {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	holder := view.Holder{AllocID: "aaaaaaaa-bbbb", Namespace: "default", JobID: "train", Group: "g", Task: "t", Queue: "ml", Status: "running", MemoryMiB: 8192, GuaranteeMilli: 500, LimitMilli: 800}
	holder.Use = &view.Use{At: at, MemoryMiB: 3072, UnusedSince: at.Add(-2 * time.Hour), Idle: true, Action: "evict"}
	direct := holder
	direct.Use = nil
	direct.AllocID, direct.JobID, direct.Queue, direct.Direct = "cccccccc-dddd", "other", "", true
	a100 := view.GPU{UUID: "GPU-b247f87f-0000-1111", Group: "nvidia/slice/A100/0", Mode: "slice", Sharing: "mps", MemoryMiB: 81920, HeldMilli: 1000, HeldMemoryMiB: 16384,
		Healthy: true, Holders: []view.Holder{holder, direct}, Measured: view.Measured{Milli: 730}}
	sick := view.GPU{Group: "nvidia/gpu/Tesla T4", Mode: "whole", MemoryMiB: 15360, Health: "XID 79; reset the GPU", Measured: view.Measured{Milli: view.Unmeasured}}
	choice := view.Choice{NodeName: "gpu-1", Groups: []string{"nvidia/slice/A100/0"}, Score: 1500, Why: "2 of 3 whole GPUs there stay free", Terms: []view.Term{{Name: "waste", Weight: -500, Value: -3000}}}
	return &view.Cluster{
		At: at, Index: 42, Leader: "http://gpu-0:4656", DryRun: true,
		Nodes: []view.Node{
			{Name: "gpu-1", Status: "ready", Eligible: true, GPUs: []view.GPU{a100, sick}},
			{Name: "gpu-2", Status: "down", GPUs: []view.GPU{{Group: "nvidia/gpu/Tesla T4", Mode: "whole", MemoryMiB: 15360}}},
		},
		Queues: []view.Queue{{Name: "ml", QuotaMilli: 2000, UsedMilli: 2500, MaxMilli: 4000, BorrowedMilli: 500, UsedMemoryMiB: 40960, Pending: 1}},
		Pending: []view.Pending{{Namespace: "default", JobID: "train", Group: "g", Missing: 1, Queue: "ml", Priority: 50, Ask: "8G,0.5", Kind: view.WaitsForQuota, Reason: "ml holds 4 of 4 GPUs",
			Start: &view.Start{Turn: 1, Of: 2, Known: true, Soonest: at.Add(30 * time.Second), Likely: at.Add(20 * time.Minute), Latest: at.Add(90 * time.Minute)}},
			{Namespace: "default", JobID: "held", Group: "g", Missing: 1, Queue: "ml", Priority: 40, Ask: "1", Kind: view.WaitsForQuota, Reason: "ml holds 4 of 4 GPUs",
				Fits: &view.Fits{Ask: "0.25", Allocs: 1, Nodes: 3}, Note: "no eviction that is allowed would make room"}},
		Returning: []view.Returning{{Namespace: "default", JobID: "probe", Group: "g", Allocs: 2, Milli: 1000, Queue: "ml", Ask: "0.5", Since: at,
			Text: "Nomad starts it again when the delay of its reschedule block is over; until then queue ml keeps 1 GPUs for it"}},
		OnCPU: []view.FellBack{{Namespace: "default", JobID: "tokenize", Group: "g", Ask: "8G", Since: at, Text: "it waited 10m0s for 8G and runs without a GPU, until it is submitted again"}},
		Decisions: []view.Decision{
			{At: at, Namespace: "default", JobID: "train", Group: "g", Queue: "ml", Priority: 50, Ask: "8G,0.5", Policy: "PACK", Outcome: view.Placed, Choices: []view.Choice{choice},
				Explanation: view.Explanation{Summary: "gpu-1 wastes least", Fits: 1, Reasons: []view.Reason{{Nodes: 2, Why: "other model", Never: true}}}},
			{Namespace: "default", JobID: "train", Group: "g", Outcome: view.Held},
			{At: at, Namespace: "default", JobID: "held", Group: "g", Ask: "1", Outcome: view.Held, Explanation: view.Explanation{Summary: "waits for quota: ml holds 4 of 4 GPUs"}},
		},
		Holds:  []view.Hold{{ID: "r-1", Owner: "ada", NodeName: "gpu-1", Milli: 500, ExpiresAt: at}},
		Events: []view.Event{{At: at, Kind: "evict", Namespace: "default", JobID: "other", AllocID: "cccccccc-dddd", For: "default/train", Text: "other made room for train"}},
	}
}

func TestOnline(t *testing.T) {
	for _, name := range []string{"NOMAD_NAMESPACE", "NOMAD_TOKEN", "NOMAD_ADDR", "NOMAD_REGION"} {
		t.Setenv(name, "")
	}
	dir := t.TempDir()
	hcl, jsonFile := filepath.Join(dir, "job.hcl"), filepath.Join(dir, "job.json")
	for path, text := range map[string]string{hcl: `job "train" {}`, jsonFile: `{"Job":{"ID":"gone"}}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		sent map[string]string
	}{
		"run": {args: []string{"run", "-check-index", "3", "-var", "n=3", "-var", "s=a ${b}", hcl}, sent: map[string]string{
			"PUT /v1/jobs/parse":              `{"JobHCL":"job \"train\" {}","Variables":"n = 3\ns = \"a $${b}\"\n","Canonicalize":false}`,
			"PUT /v1/jobs?namespace=research": `{"Job":{"ID":"train","Namespace":"research","Future":1.50},"Submission":{"Source":"job \"train\" {}","Format":"hcl2","VariableFlags":null,"Variables":"n = 3\ns = \"a $${b}\"\n"},"EnforceIndex":true,"JobModifyIndex":3}`,
		}},
		"run-json":              {args: []string{"run", "-json", hcl}},
		"run-refused":           {args: []string{"plan", jsonFile}, code: exitError},
		"plan":                  {args: []string{"plan", "-namespace", "other", hcl}, sent: map[string]string{"PUT /v1/job/train/plan?namespace=other": `{"Job":{"ID":"train","Namespace":"research","Future":1.50},"Diff":true}`}},
		"status":                {args: []string{"status"}},
		"status-node":           {args: []string{"status", "-node", "gpu-2"}},
		"status-queue":          {args: []string{"status", "-queue", "ml"}},
		"status-job":            {args: []string{"status", "-job", "other", "-namespace", "default"}},
		"idle":                  {args: []string{"idle", "-for", "1h"}, sent: map[string]string{"GET /api/v1/gpu/idle?for=1h0m0s": ""}},
		"report":                {args: []string{"report"}},
		"report-job":            {args: []string{"report", "-by", "job", "-month", "2026-10"}},
		"report-csv":            {args: []string{"report", "-csv"}},
		"report-advice":         {args: []string{"report", "-advice"}},
		"explain":               {args: []string{"explain", "train"}},
		"explain-direct":        {args: []string{"explain", "other"}},
		"explain-held":          {args: []string{"explain", "held"}},
		"explain-started-again": {args: []string{"explain", "probe"}},
		"explain-on-cpu":        {args: []string{"explain", "tokenize"}},
		"explain-unknown":       {args: []string{"explain", "nothing"}, code: exitError},
	} {
		t.Run(name, func(t *testing.T) {
			p := &placement{sent: map[string]string{}}
			service := httptest.NewServer(p)
			defer service.Close()
			args := slices.Insert(slices.Clone(tc.args), 1, "-address", service.URL)
			code, stdout, stderr := run(args...)
			if code != tc.code {
				t.Errorf("exit %d, want %d", code, tc.code)
			}
			for what, body := range tc.sent {
				if diff := cmp.Diff(body, strings.TrimSpace(p.sent[what])); diff != "" {
					t.Errorf("%s (-want +got):\n%s\nsent were %v", what, diff, p.sent)
				}
			}
			golden.Compare(t, name+".golden", stdout+stderr)
		})
	}
}

func TestTheServiceIsReachedThroughASocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "") // a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "gpu.sock"))
	if err != nil {
		t.Fatal(err)
	}
	service := httptest.NewUnstartedServer(&placement{sent: map[string]string{}})
	service.Listener.Close()
	service.Listener = listener
	service.Start()
	defer service.Close()
	if code, stdout, stderr := run("status", "-address", "unix://"+listener.Addr().String()); code != exitOK || !strings.Contains(stdout, "gpu-1") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
}

func TestStatusIsShownUntilInterrupted(t *testing.T) {
	service := httptest.NewServer(&placement{sent: map[string]string{}})
	defer service.Close()
	var out strings.Builder
	o := statusOptions{online: online{stdout: &out, stderr: io.Discard}, watch: time.Hour}
	o.address = service.URL
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if code := o.show(ctx); code != exitOK || !strings.HasPrefix(out.String(), "Leader") {
		t.Errorf("exit %d: %q", code, out.String())
	}
}

func TestOnlineUsage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"run"}, "takes one argument, not 0"},
		{[]string{"status", "x"}, "takes no arguments, not 1"},
		{[]string{"status", "-watch", "-1s"}, "-watch takes a duration above zero"},
		{[]string{"status", "-watch", "1s", "-json"}, "does not go with -json"},
		{[]string{"run", "-var", "x", "f"}, "not key=value"},
		{[]string{"report", "-csv", "-json"}, "-csv does not go with -json"},
	} {
		if code, _, stderr := run(tc.args...); code != exitUsage || !strings.Contains(stderr, tc.says) {
			t.Errorf("%v: exit %d, says %q, want %q", tc.args, code, stderr, tc.says)
		}
	}
}

// A terminal shows states in colors, unless the user wants none.
func TestStatusIsColoredOnATerminal(t *testing.T) {
	service := httptest.NewServer(&placement{sent: map[string]string{}})
	defer service.Close()
	for env, colored := range map[string]bool{"A=b": true, "NO_COLOR=1": false} {
		status := exec.Command(os.Args[0], "status", "-address", service.URL)
		status.Env = append(os.Environ(), asProgram+"=1", "NO_COLOR=", "NOMAD_CLI_NO_COLOR=", "TERM=xterm", env)
		x := pty.Start(t, status, 200, 50)
		if code := x.Ended(); code != exitOK {
			t.Errorf("%s: exit code %d: %s", env, code, x.Text())
		}
		x.Until("the reservations", func(text string) bool { return strings.Contains(text, "r-1") })
		for _, want := range []string{"\x1b[31munhealthy: XID 79; reset the GPU\x1b[0m", "\x1b[32mok\x1b[0m", "\x1b[33mquota\x1b[0m", "\x1b[1mNode\x1b[0m"} {
			if strings.Contains(x.Text(), want) != colored {
				t.Errorf("%s: %q in %q is to be %v", env, want, x.Text(), colored)
			}
		}
	}
}

// What the service answers is told in its words, not in JSON.
func TestErrorsOfTheServiceAreSentences(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, `{"success":false,"error":"the service has no view of the cluster: it is starting","details":["ask again"]}`) //nolint:errcheck // of a test
	}))
	defer service.Close()
	for _, command := range [][]string{{"status"}, {"report"}, {"explain", "job"}, {"idle"}} {
		code, _, stderr := run(append(command, "-address", service.URL)...)
		if code != exitError || strings.ContainsAny(stderr, "{}") || !strings.Contains(stderr, "no view of the cluster: it is starting\n  ask again") {
			t.Errorf("%v: exit %d: %s", command, code, stderr)
		}
	}
}
