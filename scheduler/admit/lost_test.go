// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// spoiled calls a test with a document for each value in it, which is a number there instead.
func spoiled(t *testing.T, body string, test func(path, body string)) {
	t.Helper()
	var document any
	if err := json.Unmarshal([]byte(body), &document); err != nil {
		t.Fatal(err)
	}
	whole := func() string {
		text, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	var walk func(path string, at any)
	walk = func(path string, at any) {
		switch at := at.(type) {
		case map[string]any:
			for key, value := range at {
				at[key] = 424242
				test(path+"."+key, whole())
				at[key] = value
				walk(path+"."+key, value)
			}
		case []any:
			for i, value := range at {
				at[i] = 424242
				test(fmt.Sprint(path, ".", i), whole())
				at[i] = value
				walk(fmt.Sprint(path, ".", i), value)
			}
		}
	}
	walk("", document)
}

// Whatever of a job cannot be read: it is refused, or the job has all that was decided and all that
// its author wrote.
func TestNothingIsLostOfWhatCannotBeRead(t *testing.T) {
	const sets = `"Constraints":[{"LTarget":"${node.class}","Operand":"=","RTarget":"big"}],"Affinities":[{"LTarget":"${node.class}","Operand":"=","RTarget":"own","Weight":10}],"Update":{"Canary":1}`
	const task = `{"Name":"side","Driver":"docker"},{"Name":"t","Driver":"containerd","Env":{"OWN":"1"},"Config":{"image":"i"},"Templates":[{"DestPath":"local/own"}],"Resources":{"CPU":100,"Devices":[{"Name":"acme/fpga","Count":1}%s]},"Meta":{%s}}`
	job := func(more, groups, devices, meta string) string {
		return `{"Submission":{"Format":"hcl2"},"Job":{"ID":"j","Priority":50,"UI":{"Links":[{"Label":"own","URL":"u"}]}` + more + `,"TaskGroups":[{"Name":"first","Tasks":[]},{"Name":"g","Count":2,` + sets + groups + `,"Tasks":[` + fmt.Sprintf(task, devices, meta) + `]}]}}`
	}
	decided := func(change func(*Decision)) Decision {
		d := Decision{Group: "g", Candidates: []string{"node-b"}, Preferred: []string{"node-b"}, Hold: &Hold{Kind: "quota", Sentence: "full"}, WithoutCanaries: true}
		change(&d)
		return d
	}
	link := Link{Label: "GPU placement", URL: "http://gpu.example/"}
	bound := &Constraint{LTarget: groupTarget, Operand: anyOf, RTarget: "A100"}
	for name, row := range map[string]struct {
		body string
		d    Decision
		want []string
	}{
		"a request": {job("", "", "", `"gpu":"8G"`), decided(func(d *Decision) {
			d.Tasks = []TaskDecision{{Task: "t", Devices: []Device{sliced(8, ofGiB)}, Share: gpu.Share{MemoryMiB: 7168}}}
		}), []string{"nomad-gpu,node-b", "nomad-gpu: waits for quota: full", `"Name":"nvidia/slice"`, `"memory":"7`, `"Canary":0`, "acme/fpga", "GPU placement"}},
		"a training": {job(`,"Type":"batch"`, `,"Services":[{"Name":"own"}],"Networks":[{"Mode":"host","DynamicPorts":[{"Label":"own"}]}]`, "", `"gpu":"8G","gpu_framework":"pytorch","gpu_distributed":"true"`),
			decided(func(d *Decision) { d.Tasks = []TaskDecision{trainingTask} }),
			[]string{"nomad-gpu,node-b", `"Name":"nvidia/slice"`, "WORLD_SIZE", `"Services":[`, `"DynamicPorts":[`, `"network_mode":"host"`, `"Templates":[`, "acme/fpga"}},
		"blocks": {job("", "", `,{"Name":"nvidia/gpu","Count":1,"Affinities":[{"LTarget":"${device.attr.x}","RTarget":"own","Operand":"=","Weight":5}]},{"FirstAvailable":[{"Name":"nvidia/gpu/H100"},{"Name":"nvidia/gpu/A100"}]}`, ""),
			decided(func(d *Decision) {
				d.Tasks = []TaskDecision{{Task: "t", Bound: bound, Devices: []Device{{Prefer: "A100/0"}, {}}}}
			}), []string{"nomad-gpu,node-b", "nomad-gpu,A100/0", `"RTarget":"nomad-gpu,A100"`, "acme/fpga"}},
		"without GPUs": {job("", "", "", `"gpu":"8G","gpu_fallback":"cpu"`),
			Decision{Group: "g", OnCPU: true, Tasks: []TaskDecision{{Task: "t"}}}, []string{KeyFallenFrom, "GPU_FALLBACK", "acme/fpga"}},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(path, body string) {
				j, err := Read([]byte(body), Query{})
				if err != nil || len(j.Asks) == 0 { // what is spoiled may be what asks for GPUs
					return
				}
				d := row.d
				d.Group = j.Asks[0].Group
				out, err := j.Apply([]Decision{d}, link)
				if err != nil {
					if out != nil {
						t.Errorf("%s: %v, and %s", path, err, out)
					}
					return
				}
				for _, part := range row.want {
					if !json.Valid(out) || !strings.Contains(string(out), part) {
						t.Errorf("%s: %s is lost in %s", path, part, out)
					}
				}
				if own, had := strings.Count(string(out), `"own"`), strings.Count(body, `"own"`); own != had {
					t.Errorf("%s: of %d things of the author's %d are there: %s", path, had, own, out)
				}
			}
			check("as it is", row.body)
			if j := mustRead(t, row.body); len(j.Asks) != 1 {
				t.Fatalf("%+v", j.Asks)
			}
			spoiled(t, row.body, check)
		})
	}
}

// A job in which a part has no certain meaning is refused, wherever that part is.
func TestPartsThatCannotBeReadAreRefused(t *testing.T) {
	const whole = `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"docker","Resources":{"Devices":[{"Name":"nvidia/gpu","Count":1}]}}]}]}}`
	mustRead(t, whole)
	for _, part := range []string{`"Job":{`, `"TaskGroups":[`, `"Tasks":[`, `"Resources":{`, `"Devices":[`, `"Name":"nvidia/gpu"`} {
		key, _, _ := strings.Cut(part, ":")
		for _, spoils := range []string{key + `:7,`, key + `:null,`} {
			if j, err := Read([]byte(strings.Replace(whole, part, spoils+part, 1)), Query{}); err == nil {
				t.Errorf("%s given twice: %+v", key, j.Asks)
			}
		}
	}
}

// Every group has its own decision, and those that ask for no GPU stay as they are.
func TestEveryGroupHasItsOwnDecision(t *testing.T) {
	group := func(name, meta string) string {
		return `{"Name":"` + name + `","Tasks":[{"Name":"t","Driver":"docker","Meta":{` + meta + `}}]}`
	}
	j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[`+group("a", `"gpu":"1"`)+","+group("plain", "")+","+group("b", `"gpu":"1"`)+`]}}`)
	var decisions []Decision
	for _, name := range []string{"a", "b"} {
		decisions = append(decisions, Decision{Group: name, Candidates: []string{"node-" + name}, Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/gpu", Count: 1}}}}})
	}
	out, err := j.Apply(decisions, Link{})
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range mustRead(t, string(out)).Asks {
		if g.Was == nil || len(g.Was.Candidates) != 1 || g.Was.Candidates[0] != "node-"+g.Group {
			t.Errorf("group %q: %+v", g.Group, g.Was)
		}
	}
	if !strings.Contains(string(out), group("plain", "")) {
		t.Errorf("what asks for no GPU is changed in %s", out)
	}
	// Decisions that are not those of the job's groups and tasks are mistakes.
	gpu, empty := decisions[0].Tasks, []TaskDecision{{Task: "t"}}
	for name, wrong := range map[string][]Decision{
		"one is missing":     decisions[:1],
		"of another group":   {decisions[0], {Group: "c", Tasks: gpu}},
		"without a task":     {decisions[0], {Group: "b"}},
		"of another task":    {decisions[0], {Group: "b", Tasks: []TaskDecision{{Task: "u", Devices: gpu[0].Devices}}}},
		"without its blocks": {decisions[0], {Group: "b", Tasks: empty}},
	} {
		if out, err := j.Apply(wrong, Link{}); err == nil || out != nil {
			t.Errorf("%s: %s, %v", name, out, err)
		}
	}
}

// A share is asked for in one place.
func TestAShareInTwoPlacesIsRefused(t *testing.T) {
	j := mustRead(t, `{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"containerd","Meta":{"gpu":"8G"},"Config":{"gpu":[{"memory":"7GiB"}]}}]}]}}`)
	if out, err := j.Apply([]Decision{{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{sliced(8)}}}}}, Link{}); err == nil || !strings.Contains(err.Error(), "beside meta gpu") || out != nil {
		t.Errorf("%s, %v", out, err)
	}
}
