// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// What cannot be read of MIG is said: it must not pass for gone.
func TestMIGInstancesThatCannotBeRead(t *testing.T) {
	for _, tc := range []struct {
		call      string
		code      nvml.Return
		instances int
		says      string
	}{
		{"GetMigMode", nvml.ERROR_UNKNOWN, 0, "reading the GPU's MIG mode"},
		{"GetMigMode", nvml.ERROR_NOT_SUPPORTED, 0, ""},
		{"GetMaxMigDeviceCount", nvml.ERROR_UNKNOWN, 0, "counting the GPU's MIG instances"},
		{"GetMigDeviceHandleByIndex", nvml.ERROR_UNKNOWN, 0, "finding the GPU's MIG instances"},
		{"GetMigDeviceHandleByIndex", nvml.ERROR_NOT_FOUND, 0, ""},
		{"GetAttributes", nvml.ERROR_UNKNOWN, 2, "reading the MIG instance's attributes"},
	} {
		t.Run(tc.call, func(t *testing.T) {
			r := newRig(t, h100MIG)
			r.happen(0, func(c *sim.Condition) { c.Errors = map[string]int{tc.call: int(tc.code)} })
			m, err := r.Survey()
			if err != nil {
				t.Fatal(err)
			}
			g := m.GPUs[0]
			var problems []hardware.Problem
			if g.PartitionProblem != nil {
				problems = append(problems, *g.PartitionProblem)
			}
			for _, i := range g.Partitions {
				problems = append(problems, i.Problems...)
				if i.UUID == "" || i.Known() {
					t.Errorf("instance is %+v", i)
				}
			}
			if len(g.Partitions) != tc.instances || len(problems) > 0 != (tc.says != "") ||
				slices.ContainsFunc(problems, func(p hardware.Problem) bool { return !strings.Contains(p.Message, tc.says) }) {
				t.Errorf("%d instances, problems %+v", len(g.Partitions), problems)
			}
		})
	}
}
