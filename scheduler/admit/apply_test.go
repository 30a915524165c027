// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// sliced is a block of so many slices of the first A100, for GPUs that meet the
// constraints.
func sliced(count int64, constraints ...Constraint) Device {
	return Device{Name: "nvidia/slice", Count: count, Prefer: "A100/0", Constraints: constraints}
}

var (
	isA100   = Constraint{"${device.attr.type}", "A100", "="}
	ofGiB    = Constraint{"${device.attr.slice_memory}", "1024 MiB", ">="}
	of79     = Constraint{"${device.attr.slices}", "79", "="}
	sixteenG = framework.Share{GPUs: 1, Type: "A100", MemoryMiB: 16 * 1024}
)

// TestApply holds every field that an admission writes, in testdata/*.json: the
// body as it comes, decided as in the row, gives the .golden beside it.
func TestApply(t *testing.T) {
	second := sliced(79, isA100, of79)
	second.Prefer = "A100/1"
	for name, tc := range map[string]struct {
		task   TaskDecision
		change func(*Decision)
	}{
		"memory-and-fraction": {task: TaskDecision{Devices: []Device{sliced(8, ofGiB)}, Share: gpu.Share{GuaranteeMilli: 500, LimitMilli: 800}}},
		"two-on-slices":       {task: TaskDecision{Devices: []Device{sliced(79, isA100, of79), second}}},
		"plain-device":        {task: TaskDecision{Devices: []Device{{Prefer: "A100/0"}}}},
		"held": {task: TaskDecision{Devices: []Device{sliced(40, of79)}, Share: gpu.Share{GuaranteeMilli: 500}}, change: func(d *Decision) {
			d.Preferred, d.Hold = nil, &Hold{Kind: "quota", Sentence: `team "ml" holds 8 of ${8} GPUs`}
		}},
		"framework": {task: TaskDecision{Devices: []Device{sliced(16, isA100, ofGiB)}, Holds: sixteenG}},
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
				tc.task.Task = ask.Task
				d.Tasks = append(d.Tasks, tc.task)
			}
			if tc.change != nil {
				tc.change(&d)
			}
			got := applied(t, j, d)
			golden.Compare(t, name+".golden", indent(t, got))
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

// A copy of an object is changed alone.
func TestACopyIsChangedAlone(t *testing.T) {
	o, err := parseObject([]byte(`{"A":1,"B":2}`))
	if err != nil {
		t.Fatal(err)
	}
	c := o.clone()
	c.set("A", json.RawMessage("3"))
	if got, copied := string(o.get("A")), string(c.get("A")); got != "1" || copied != "3" {
		t.Errorf("%s of a copy with %s", got, copied)
	}
}

// What waits is started by Nomad in the order of the priorities of evaluations: no submission
// gives its own another one than its job's, by which the order is decided.
func TestNoEvaluationHasAPriorityOfItsOwn(t *testing.T) {
	for _, field := range []string{`"EvalPriority":100`, `"evalpriority":1`, `"EVALPRIORITY":"x"`} {
		j := mustRead(t, `{`+field+`,"Job":{"ID":"j","Priority":50,"TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Meta":{"gpu":"1"}}]}]},"EnforceIndex":true}`)
		body := string(applied(t, j, Decision{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{sliced(8)}}}}))
		if strings.Contains(strings.ToLower(body), "evalpriority") || !strings.Contains(body, `"EnforceIndex":true`) || !strings.Contains(body, `"Priority":50`) {
			t.Errorf("%s: %s", field, body)
		}
	}
}
