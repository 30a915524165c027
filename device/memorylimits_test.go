// SPDX-License-Identifier: MPL-2.0

package device

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/subcommand"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Where the driver holds a task to its memory the grade says so, and the task driver is
// told what to run.
func TestSlicesWhoseMemoryTheDriverHolds(t *testing.T) {
	for name, tc := range map[string]struct {
		driver, config string
		unified        bool
		grade          gpu.Grade
	}{
		"branch 615":               {"615.71.09", "", true, gpu.GradeEnforced},
		"without MPS":              {"615.71.09", "sharing = \"timeslice\"\n", true, gpu.GradeEnforced},
		"without cgroup v2":        {"615.71.09", "", false, gpu.GradeCooperative},
		"an earlier branch":        {"610.43.02", "", true, gpu.GradeCooperative},
		"the operator says no":     {"615.71.09", "memory_limits = false\n", true, gpu.GradeCooperative},
		"replicas have no memory":  {"615.71.09", "mode = \"shared\"\n", true, gpu.GradeNone},
		"a whole GPU has it alone": {"615.71.09", "mode = \"whole\"\n", true, gpu.GradeHardware},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			topology := filepath.Join(r.dir, "machine.hcl")
			writeFile(t, topology, `machine "m" { driver = "`+tc.driver+`" }
gpu { model = "H100" }`)
			if err := sim.WriteControl(r.dir+"/sim", sim.Control{Unified: tc.unified}); err != nil {
				t.Fatal(err)
			}
			config := tc.config
			if !strings.Contains(config, "mode") {
				config += `mode = "slice"`
			}
			r.start(topology, config)
			groups := r.until("all is healthy", allHealthy)
			if grade := plan.AttributeText(groups[0].Attributes[gpu.AttrGrade]); grade != string(tc.grade) {
				t.Errorf("the grade is %s", grade)
			}
			states := must(r.openState().GPUs())
			limiter := states[0].Limiter
			if (limiter != nil) != (tc.grade == gpu.GradeEnforced) {
				t.Fatalf("the driver is told %+v", limiter)
			}
			if limiter == nil {
				return
			}
			group := t.TempDir()
			if err := subcommand.RunMemoryLimits(append(slices.Clone(limiter.Command[2:]), states[0].UUID, group, "1024", "2048")); err != nil {
				t.Fatal(err)
			}
			set := must(sim.ReadMemoryLimits(r.dir + "/sim"))
			if want := (sim.MemoryLimits{Soft: 1024 << 20, Hard: 2048 << 20}); set[states[0].UUID][group] != want {
				t.Errorf("the limits are %+v", set)
			}
		})
	}
}
