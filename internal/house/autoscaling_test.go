// SPDX-License-Identifier: MPL-2.0

package house

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

// The queries of the autoscaling guide's policy say by how many nodes a pool is to grow, and how
// many of it are empty: from nothing and back, without those that are reserved or kept.
func TestQueriesOfTheAutoscalingGuide(t *testing.T) {
	promtool, query := promtool(t), queriesOfThePolicy(t)
	type test struct {
		Interval string           `json:"interval"`
		Series   []map[string]any `json:"input_series"`
		Exprs    []map[string]any `json:"promql_expr_test"`
	}
	var tests []test
	for _, state := range []struct {
		series     map[string]string // the same of both replicas
		out, empty float64
	}{
		{nil, 0, 0}, // no scrape yet: nothing changes
		{map[string]string{`nomad_gpu_nodes_idle{%s}`: "0"}, 0, 0},
		// Twelve GPUs are missing, of nodes that have eight.
		{map[string]string{`nomad_gpu_pending_gpus{%s,kind="room"}`: "12", `nomad_gpu_pending_allocs{%s,kind="room"}`: "3", `nomad_gpu_pending_groups{%s,kind="room"}`: "1", `nomad_gpu_nodes_idle{%s}`: "0"}, 2, 0},
		// A pool of no nodes, whose model nothing is known about.
		{map[string]string{`nomad_gpu_pending_gpus{%s,kind="room"}`: "0", `nomad_gpu_pending_allocs{%s,kind="room"}`: "3", `nomad_gpu_pending_groups{%s,kind="room"}`: "1", `nomad_gpu_nodes_idle{%s}`: "0"}, 1, 0},
		// All is done, and two nodes are empty.
		{map[string]string{`nomad_gpu_pending_gpus{%s,kind="room"}`: "0", `nomad_gpu_pending_allocs{%s,kind="room"}`: "0", `nomad_gpu_pending_groups{%s,kind="room"}`: "0", `nomad_gpu_nodes_idle{%s}`: "2"}, 0, 2},
		// More nodes start nothing that waits for quota, and empty ones are not wanted for it.
		{map[string]string{`nomad_gpu_pending_groups{%s,kind="quota"}`: "4", `nomad_gpu_nodes_idle{%s}`: "2"}, 0, 2},
		// Empty nodes are kept for large tasks, and small ones wait beside them.
		{map[string]string{`nomad_gpu_pending_groups{%s,kind="headroom"}`: "1", `nomad_gpu_nodes_idle{%s}`: "2"}, 0, 0},
	} {
		one := test{Interval: "1m"}
		for name, value := range state.series {
			for _, replica := range []string{"a", "b"} {
				one.Series = append(one.Series, map[string]any{"series": fmt.Sprintf(name, `instance="`+replica+`"`), "values": value + "x40"})
			}
		}
		for check, want := range map[string]float64{"waiting": state.out, "empty": state.empty} {
			samples := []map[string]any{{"labels": "{}", "value": want}}
			one.Exprs = append(one.Exprs, map[string]any{"expr": query[check], "eval_time": "35m", "exp_samples": samples})
		}
		tests = append(tests, one)
	}
	text, err := json.Marshal(map[string]any{"tests": tests}) // which is YAML too
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	known := sent(t, "service")
	for check, q := range query {
		for _, name := range asked.FindAllString(q, -1) {
			if !strings.Contains(strings.Join(known, " "), name) {
				t.Errorf("check %q asks for %s, which is not sent", check, name)
			}
		}
	}
}

// queriesOfThePolicy are those of the guide's checks, by name.
func queriesOfThePolicy(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, block := range documents.HCL(t, root) {
		if !strings.HasSuffix(block.Path, "autoscaling.md") || !strings.Contains(block.Text, "scaling \"") {
			continue
		}
		file, diags := hclparse.NewParser().ParseHCL([]byte(block.Text), block.Path)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		for _, policy := range file.Body.(*hclsyntax.Body).Blocks[0].Body.Blocks {
			for _, check := range policy.Body.Blocks {
				if check.Type != "check" {
					continue
				}
				value, diags := check.Body.Attributes["query"].Expr.Value(&hcl.EvalContext{})
				if diags.HasErrors() {
					t.Fatal(diags)
				}
				found[check.Labels[0]] = value.AsString()
			}
		}
	}
	if len(found) != 2 {
		t.Fatalf("the guide's policy has the checks %v", found)
	}
	return found
}
