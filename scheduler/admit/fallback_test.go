// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// falling is a job of one group whose task has some meta beside a fallback, and other fields.
func falling(jobFields, meta, taskFields string) string {
	return `{"Job":{"ID":"j"` + jobFields + `,"TaskGroups":[{"Name":"g","Count":1,"Tasks":[{"Name":"t","Driver":"containerd","Meta":{"gpu_fallback":"cpu"` + meta + `}` + taskFields + `}]}]}}`
}

func TestFallbackIsRead(t *testing.T) {
	for meta, want := range map[string]time.Duration{`,"gpu":"8G"`: 10 * time.Minute, `,"gpu":"8G","gpu_fallback_after":"90s"`: 90 * time.Second, `,"gpu":"8G","gpu_fallback_after":"720h"`: 720 * time.Hour} {
		j, err := Read([]byte(falling("", meta, "")), Query{})
		if err != nil || j.Asks[0].FallbackAfter != want {
			t.Errorf("%s: %+v, %v", meta, j.Asks, err)
		}
	}
	first := falling("", "", `,"Resources":{"Devices":[{"FirstAvailable":[{"Name":"nvidia/gpu/H100"},{"Name":"nvidia/gpu/A100","Count":2}]}]}`)
	if j, err := Read([]byte(first), Query{}); err != nil || j.Asks[0].FallbackAfter != 10*time.Minute {
		t.Errorf("as the last choice of a block: %+v, %v", j.Asks, err)
	}
}

// What could not run without a GPU, or would not wait for one, is refused with the reason.
func TestFallbackThatCannotWorkIsRefused(t *testing.T) {
	const ask = `,"gpu":"8G"`
	blocks := `,"Resources":{"Devices":[{"Name":"nvidia/gpu"}]}`
	for body, want := range map[string]string{
		falling("", ask+`,"gpu_fallback":"none"`, ""):                              `gpu_fallback: "none" is not valid (cpu)`,
		falling("", ask+`,"gpu_fallback":"CPU"`, ""):                               `gpu_fallback: "CPU" is not valid (cpu); write "cpu"`,
		falling("", ask+`,"gpu_fallback_after":"soon"`, ""):                        `gpu_fallback_after = "soon" is not valid (how long to wait for a GPU, from 1s to 720h: 10m, 2h)`,
		falling("", ask+`,"gpu_fallback_after":"0s"`, ""):                          `gpu_fallback_after = "0s" is not valid`,
		falling("", ask+`,"gpu_fallback":"","gpu_fallback_after":"5m"`, ""):        `gpu_fallback_after = "5m" has no effect without gpu_fallback = "cpu"`,
		falling(`,"Type":"system"`, ask, ""):                                       "a system job starts on every node",
		falling(`,"Type":"sysbatch"`, ask, ""):                                     "a sysbatch job starts on every node",
		falling(`,"ParameterizedJob":{}`, ask, ""):                                 "Nomad does not let dispatched jobs be changed",
		falling(`,"Periodic":{"Enabled":true}`, ask, ""):                           "Nomad would forget whose child a job is",
		falling("", ask+`,"gpu_reservation":"r-1"`, ""):                            "gpu_reservation holds a GPU for it",
		falling("", ask+`,"gpu_framework":"pytorch"`, ""):                          "gpu_framework sets the task up for its share of a GPU",
		falling("", "", blocks+`,"Config":{"gpu":[{"memory":"7GiB"}]}`):            "its config has a gpu block",
		falling("", ask, `,"Config":{"runtime":"nvidia"}`):                         `its config has runtime = "nvidia"`,
		falling("", ask, `,"Config":{"devices":["nvidia.com/gpu=all"]}`):           "devices of its config names nvidia.com/gpu",
		falling("", ask, `,"Config":{"devices":[{"host_path":"/dev/nvidiactl"}]}`): "devices of its config names /dev/nvidia",
		`{"Job":{"ID":"j","TaskGroups":[{"Name":"a","Tasks":[{"Name":"t","Meta":{"gpu":"1","gpu_gang":"true","gpu_fallback":"cpu"}}]},{"Name":"b","Tasks":[{"Name":"t","Meta":{"gpu":"1","gpu_gang":"true"}}]}]}}`: `differ from those of group "a", with which it starts together`,
		`{"Job":{"ID":"j","TaskGroups":[{"Name":"a","Tasks":[{"Name":"s","Meta":{"gpu":"1","gpu_fallback":"cpu"}},{"Name":"t","Meta":{"gpu":"1"}}]}]}}`:                                                            "a group falls back as one",
		falling("", "", ""): `gpu_fallback = "cpu" has no effect without gpu`,
	} {
		if _, err := Read([]byte(body), Query{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n%v, want %q", body, err, want)
		}
	}
}

// What Nomad places alone claims no reservation.
func TestWhoClaimsAReservation(t *testing.T) {
	for fields, want := range map[string]string{
		``:                             "",
		`,"Type":"batch"`:              "",
		`,"Type":"system"`:             "a system job starts on every node",
		`,"Type":"sysbatch"`:           "a sysbatch job starts on every node",
		`,"ParameterizedJob":{}`:       "the children of a parameterized job",
		`,"Periodic":{"Enabled":true}`: "the children of a periodic job",
	} {
		body := `{"Job":{"ID":"j"` + fields + `,"TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"docker","Meta":{"gpu":"1","gpu_reservation":"r-1"}}]}]}}`
		_, err := Read([]byte(body), Query{})
		if (err != nil) != (want != "") || err != nil && !(strings.Contains(err.Error(), want) && strings.Contains(err.Error(), `gpu_reservation = "r-1" is not valid here`)) {
			t.Errorf("%s: %v, want %q", fields, err, want)
		}
	}
}

// What is registered for the CPU asks for no GPU, bears no mark, tells the task, and keeps all
// that is not of GPUs; read again it is no work of the service's.
func TestApplyOnCPU(t *testing.T) {
	hold := `{"LTarget":"nomad-gpu: waits for room: none","Operand":"=","RTarget":"admitted"}`
	for name, c := range map[string]struct{ body, from string }{
		"by meta": {`{"Job":{"ID":"j","Meta":{"gpu":"8G,0.5"},"TaskGroups":[{"Name":"g","Constraints":[{"LTarget":"${node.class}","Operand":"=","RTarget":"big"},` + hold + `],
			"Affinities":[{"LTarget":"${node.unique.id}","Operand":"set_contains_any","RTarget":"nomad-gpu,n1","Weight":100}],"Tasks":[{"Name":"t","Driver":"containerd",
			"Meta":{"gpu_fallback":"cpu","gpu_limit":"0.8","own":"kept"},"Env":{"A":"1"},"Config":{"image":"i","gpu":[{"memory":"8GiB"}]},"Resources":{"Devices":[{"Name":"acme/fpga"},{"Name":"nvidia/slice","Count":8}]}}]}]}}`, "8G,0.5"},
		"by block": {`{"Job":{"ID":"j","TaskGroups":[{"Name":"g","Constraints":[{"LTarget":"${node.class}","Operand":"=","RTarget":"big"},` + hold + `],"Tasks":[{"Name":"t","Driver":"docker",
			"Meta":{"gpu_fallback":"cpu","own":"kept"},"Env":{"A":"1"},"Config":{"image":"i"},"Resources":{"Devices":[{"Name":"acme/fpga"},{"FirstAvailable":[{"Name":"nvidia/gpu/H100"},{"Name":"nvidia/gpu/A100","Count":2}]}]}}]}]}}`, "1 x nvidia/gpu/H100 or 2 x nvidia/gpu/A100"},
	} {
		j, err := Read([]byte(c.body), Query{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, err := j.Apply([]Decision{{Group: "g", OnCPU: true, Tasks: []TaskDecision{{Task: "t"}}}}, Link{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got struct {
			Job struct {
				TaskGroups []struct {
					Constraints []Constraint
					Affinities  []any
					Tasks       []struct {
						Meta, Env map[string]string
						Config    map[string]any
						Resources struct{ Devices []struct{ Name string } }
					}
				}
			}
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatal(err)
		}
		g := got.Job.TaskGroups[0]
		task := g.Tasks[0]
		if len(g.Constraints) != 1 || g.Constraints[0].RTarget != "big" || len(g.Affinities) != 0 {
			t.Errorf("%s: constraints %v, affinities %v", name, g.Constraints, g.Affinities)
		}
		if len(task.Resources.Devices) != 1 || task.Resources.Devices[0].Name != "acme/fpga" || len(task.Config) != 1 {
			t.Errorf("%s: devices %v, config %v", name, task.Resources.Devices, task.Config)
		}
		if request, own := task.Meta["gpu"]; request != "" || !own || task.Meta["own"] != "kept" || task.Meta[KeyFallenFrom] != c.from || len(task.Meta) != 3 {
			t.Errorf("%s: meta %v", name, task.Meta)
		}
		if e := task.Env; e["GPU_FALLBACK"] != "cpu" || e["NVIDIA_VISIBLE_DEVICES"] != "void" || e["CUDA_VISIBLE_DEVICES"] != "-1" || e["A"] != "1" {
			t.Errorf("%s: environment %v", name, e)
		}
		if again, err := Read(body, Query{}); err != nil || len(again.Asks) != 0 {
			t.Errorf("%s: read again it asks for %+v, %v", name, again.Asks, err)
		}
	}
}
