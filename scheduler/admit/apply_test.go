package admit

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	a100 = Chosen{Group: "nvidia/slice/A100/0", Mode: gpu.ModeSlice, Type: "A100", Model: "NVIDIA A100-SXM4-80GB", Slices: 79, SliceMemoryMiB: 1024, MemoryMiB: 81559}
	v100 = Chosen{Group: "nvidia/gpu/Tesla V100-SXM2-32GB", Mode: gpu.ModeWhole, Type: "V100", Model: "Tesla V100-SXM2-32GB", MemoryMiB: 32510}
	mig  = Chosen{Group: "nvidia/mig/1g.10gb", Mode: gpu.ModeWhole, Type: "A100", Model: "NVIDIA A100-SXM4-80GB MIG 1g.10gb", MemoryMiB: 9728}
)

func take(c Chosen, n int64) Chosen { c.Take = n; return c }

// TestApply holds every field that an admission writes, in testdata/*.json: the
// body as it comes, decided as in the row, gives the .golden beside it.
func TestApply(t *testing.T) {
	second := take(a100, 79)
	second.Group = "nvidia/slice/A100/1"
	for name, tc := range map[string]struct {
		chosen []Chosen
		change func(*Decision)
	}{
		"memory-and-fraction": {chosen: []Chosen{take(a100, 8)}},
		"two-on-slices":       {chosen: []Chosen{take(a100, 79), second}},
		"plain-device":        {chosen: []Chosen{take(a100, 8)}},
		"held": {chosen: []Chosen{take(a100, 40)}, change: func(d *Decision) {
			d.Preferred, d.Hold = nil, &Hold{Kind: "quota", Sentence: `team "ml" holds 8 of ${8} GPUs`}
		}},
		"framework": {chosen: []Chosen{take(a100, 16)}},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := os.ReadFile(filepath.Join("testdata", name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			j, err := Read(body, Query{})
			if err != nil {
				t.Fatal(err)
			}
			d := Decision{Group: j.Asks[0].Group, Preferred: []string{"node-b", "node-a"}}
			for _, ask := range j.Asks[0].Tasks {
				task, err := Blocks(ask, tc.chosen)
				if err != nil {
					t.Fatal(err)
				}
				d.Tasks = append(d.Tasks, task)
			}
			if tc.change != nil {
				tc.change(&d)
			}
			got := applied(t, j, d)
			compareGolden(t, name, got)
			again, err := Read(got, Query{})
			if err != nil {
				t.Fatal(err)
			}
			if twice := applied(t, again, d); !bytes.Equal(got, twice) {
				t.Errorf("applied to its own result:\n%s", cmp.Diff(indent(t, got), indent(t, twice)))
			}
			if again.Asks[0].Was == nil {
				t.Error("the result does not show that it was admitted")
			}
			if again.Asks[0].Key() != j.Asks[0].Key() {
				t.Error("the result has another key than the job")
			}
		})
	}
}

func applied(t *testing.T, j *Job, d Decision) []byte {
	t.Helper()
	out, err := j.Apply([]Decision{d}, Link{Label: "GPU placement", URL: "http://gpu.example/?job=train"})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	text := indent(t, got)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func indent(t *testing.T, text []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return b.String() + "\n"
}

// Everything that is not changed keeps its bytes: odd spacing, unknown fields,
// numbers beyond float64, escapes.
func TestApplyKeepsBytes(t *testing.T) {
	odd := []string{
		`"EnforceIndex": true`, `"JobModifyIndex":18446744073709551615`,
		`"Submission":{"Source":"job \"a\" {\n}\u003c","Format":"hcl2","Variables" : ""}`,
		`"Future":{ "x" : [1 , 2.50e3, null] }`, `"Update":{"Stagger":  30000000000}`,
		`"Config":{"image":"a<b>&c","args":["\u00e9"]}`, `{"Name":"other", "Tasks":[ {"Name":"x"} ]}`,
	}
	body := `{` + odd[0] + `,` + odd[1] + `,` + odd[2] + `,"Job":{"ID":"a",` + odd[3] + `,"TaskGroups":[` + odd[6] +
		`,{"Name":"g",` + odd[4] + `,"Tasks":[{"Name":"t","Driver":"docker",` + odd[5] + `,"Meta":{"gpu":"1"}}]}]}}`
	j, err := Read([]byte(body), Query{})
	if err != nil {
		t.Fatal(err)
	}
	out := string(applied(t, j, Decision{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/gpu", Count: 1}}}}}))
	for _, part := range odd {
		_, value, _ := strings.Cut(part, ":")
		if !strings.Contains(out, strings.TrimSpace(value)) {
			t.Errorf("%s is not kept in %s", part, out)
		}
	}
}

func TestBlocks(t *testing.T) {
	for name, tc := range map[string]struct {
		request string
		chosen  []Chosen
		want    []Device
		share   gpu.Share
	}{
		"memory": {"8G", []Chosen{take(a100, 8)}, []Device{{Name: "nvidia/slice", Count: 8, Prefer: "A100/0",
			Constraints: []Constraint{{"${device.attr.slice_memory}", "1024 MiB", ">="}}}}, gpu.Share{}},
		"memory that is not whole slices": {"8600M,0.5", []Chosen{take(a100, 9)}, []Device{{Name: "nvidia/slice", Count: 9, Prefer: "A100/0",
			Constraints: []Constraint{{"${device.attr.slice_memory}", "1024 MiB", ">="}}}}, gpu.Share{MemoryMiB: 8600, GuaranteeMilli: 500}},
		"fraction": {"0.5", []Chosen{take(a100, 39)}, []Device{{Name: "nvidia/slice", Count: 39, Prefer: "A100/0",
			Constraints: []Constraint{{"${device.attr.slices}", "79", "="}}}}, gpu.Share{GuaranteeMilli: 500}},
		"the nominal size is the whole card": {"80G", []Chosen{take(a100, 79)}, []Device{{Name: "nvidia/slice", Count: 79, Prefer: "A100/0",
			Constraints: []Constraint{{"${device.attr.slices}", "79", "="}}}}, gpu.Share{}},
		"whole on slices": {"1(A100)", []Chosen{take(a100, 79)}, []Device{{Name: "nvidia/slice", Count: 79, Prefer: "A100/0",
			Constraints: []Constraint{{"${device.attr.type}", "A100", "="}, {"${device.attr.slices}", "79", "="}}}}, gpu.Share{}},
		"whole GPUs": {"2", []Chosen{v100, v100}, []Device{{Name: "nvidia/gpu", Count: 2, Prefer: "Tesla V100-SXM2-32GB"}}, gpu.Share{}},
		"full model name": {"1(Tesla-V100-SXM2-32GB)", []Chosen{v100}, []Device{{Name: "nvidia/gpu", Count: 1, Prefer: "Tesla V100-SXM2-32GB",
			Constraints: []Constraint{{"${device.attr.model}", "Tesla V100-SXM2-32GB", "="}}}}, gpu.Share{}},
		"MIG": {"8G", []Chosen{mig}, []Device{{Name: "nvidia/mig/1g.10gb", Count: 1, Prefer: "1g.10gb"}}, gpu.Share{}},
		"a plugin without the attribute type": {"1", []Chosen{{Group: "nvidia/gpu/Tesla T4", Mode: gpu.ModeWhole}},
			[]Device{{Name: "nvidia/gpu/Tesla T4", Count: 1, Prefer: "Tesla T4"}}, gpu.Share{}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := gpu.ParseRequest(tc.request)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Blocks(TaskAsk{Task: "t", Request: r}, tc.chosen)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got.Devices); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.share, got.Share); diff != "" {
				t.Errorf("share (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBlocksErrors(t *testing.T) {
	two := gpu.Request{Kind: gpu.KindCount, Count: 2}
	memory := gpu.Request{Kind: gpu.KindMemory, MemoryMiB: 8192}
	for name, tc := range map[string]struct {
		request gpu.Request
		chosen  []Chosen
	}{
		"too few GPUs":   {two, []Chosen{v100}},
		"no slices":      {memory, []Chosen{take(a100, 0)}},
		"too many taken": {memory, []Chosen{take(a100, 80)}},
	} {
		if _, err := Blocks(TaskAsk{Task: "t", Request: tc.request}, tc.chosen); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
