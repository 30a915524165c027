package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// placement answers as the placement service does, and keeps what it was sent.
type placement struct {
	sent map[string]string // body by method and path
}

func (p *placement) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.sent[r.Method+" "+r.URL.String()] = string(body)
	groups := `"GPUGroups":[{"group":"g","queue":"ml","ask":"8G,0.5","count":2,"preferred":["11111111-2222","99999999-0000"],"why":["goes to gpu-1 (nvidia/slice/A100/0, score 7)"]}]`
	switch r.URL.Path {
	case "/v1/jobs/parse":
		fmt.Fprint(w, `{"ID":"train","Namespace":"research","Future":1.50}`)
	case "/v1/jobs":
		fmt.Fprint(w, `{"EvalID":"0123456789","JobModifyIndex":7,`+groups+`}`)
	case "/v1/job/train/plan":
		fmt.Fprint(w, `{"JobModifyIndex":7,"Diff":{"Type":"Edited"},"FailedTGAllocs":{"g":{"NodesEvaluated":3,"ConstraintFiltered":{"kernel":2},"DimensionExhausted":{"devices":1}}},`+groups+`}`)
	case "/v1/nodes":
		fmt.Fprint(w, `[{"ID":"11111111-2222","Name":"gpu-1"}]`)
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
	holder := view.Holder{AllocID: "aaaaaaaa-bbbb", Namespace: "default", JobID: "train", Group: "g", Task: "t", Status: "running", MemoryMiB: 8192, GuaranteeMilli: 500, LimitMilli: 800}
	direct := holder
	direct.AllocID, direct.JobID, direct.Direct = "cccccccc-dddd", "other", true
	a100 := view.GPU{Group: "nvidia/slice/A100/0", Mode: "slice", Sharing: "mps", MemoryMiB: 81920, HeldMilli: 1000, HeldMemoryMiB: 16384,
		Healthy: true, Holders: []view.Holder{holder, direct}, Measured: view.Measured{Milli: 730}}
	sick := view.GPU{Group: "nvidia/gpu/Tesla T4", Mode: "whole", MemoryMiB: 15360, Health: "XID 79; reset the GPU", Measured: view.Measured{Milli: view.Unmeasured}}
	choice := view.Choice{NodeName: "gpu-1", Groups: []string{"nvidia/slice/A100/0"}, Score: 1500, Terms: []view.Term{{Name: "waste", Weight: -500, Value: -3000}}}
	return &view.Cluster{
		At: at, Index: 42, Leader: "http://gpu-0:4656", DryRun: true,
		Nodes: []view.Node{
			{Name: "gpu-1", Status: "ready", Eligible: true, GPUs: []view.GPU{a100, sick}},
			{Name: "gpu-2", Status: "down", GPUs: []view.GPU{{Group: "nvidia/gpu/Tesla T4", Mode: "whole", MemoryMiB: 15360}}},
		},
		Queues: []view.Queue{{Name: "ml", QuotaMilli: 2000, UsedMilli: 2500, MaxMilli: 4000, BorrowedMilli: 500, UsedMemoryMiB: 40960, Pending: 1}},
		Pending: []view.Pending{{Namespace: "default", JobID: "train", Group: "g", Missing: 1, Queue: "ml", Priority: 50, Ask: "8G,0.5", Kind: view.WaitsForQuota, Reason: "ml holds 4 of 4 GPUs"},
			{Namespace: "default", JobID: "held", Group: "g", Missing: 1, Queue: "ml", Priority: 40, Ask: "1", Kind: view.WaitsForQuota, Reason: "ml holds 4 of 4 GPUs",
				Note: "no eviction that is allowed would make room"}},
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
		"run-json":        {args: []string{"run", "-json", hcl}},
		"run-refused":     {args: []string{"plan", jsonFile}, code: exitError},
		"plan":            {args: []string{"plan", "-namespace", "other", hcl}, sent: map[string]string{"PUT /v1/job/train/plan?namespace=other": `{"Job":{"ID":"train","Namespace":"research","Future":1.50},"Diff":true}`}},
		"status":          {args: []string{"status"}},
		"explain":         {args: []string{"explain", "train"}},
		"explain-direct":  {args: []string{"explain", "other"}},
		"explain-held":    {args: []string{"explain", "held"}},
		"explain-unknown": {args: []string{"explain", "nothing"}, code: exitError},
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

func TestOnlineUsage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		says string
	}{
		{[]string{"run"}, "takes one argument, not 0"},
		{[]string{"status", "x"}, "takes no arguments, not 1"},
		{[]string{"run", "-var", "x", "f"}, "not key=value"},
	} {
		if code, _, stderr := run(tc.args...); code != exitUsage || !strings.Contains(stderr, tc.says) {
			t.Errorf("%v: exit %d, says %q, want %q", tc.args, code, stderr, tc.says)
		}
	}
}

func TestCompletion(t *testing.T) {
	all := completion()
	for _, c := range commands {
		if _, ok := all.Sub[c.Name]; !ok {
			t.Errorf("%s is not completed", c.Name)
		}
	}
	for _, name := range []string{"-var-file", "-check-index", "-json", "-address", "-token"} {
		if _, ok := all.Sub["run"].Flags[name]; !ok {
			t.Errorf("run %s is not completed: %v", name, all.Sub["run"].Flags)
		}
	}
}
