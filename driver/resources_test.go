// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// What Nomad reserved is what a task has. The limit that Nomad computes for Linux is
// memory_max where a job has one, so what is reserved stands beside it.
func TestResourcesOfATask(t *testing.T) {
	linux := &drivers.LinuxResources{CPUShares: 500, PercentTicks: 0.25, MemoryLimitBytes: 512 << 20}
	nomad := func(memory, most int64) *structs.AllocatedTaskResources {
		return &structs.AllocatedTaskResources{Memory: structs.AllocatedMemoryResources{MemoryMB: memory, MemoryMaxMB: most}}
	}
	for name, tc := range map[string]struct {
		given *drivers.Resources
		want  spec.Resources
	}{
		"memory and memory_max":  {&drivers.Resources{NomadResources: nomad(256, 512), LinuxResources: linux}, spec.Resources{CPUShares: 500, CPUFraction: 0.25, MemoryBytes: 256 << 20, MemoryMaxBytes: 512 << 20}},
		"memory alone":           {&drivers.Resources{NomadResources: nomad(512, 0), LinuxResources: linux}, spec.Resources{CPUShares: 500, CPUFraction: 0.25, MemoryBytes: 512 << 20}},
		"memory without a limit": {&drivers.Resources{NomadResources: nomad(256, -1)}, spec.Resources{MemoryBytes: 256 << 20, MemoryMaxBytes: -1 << 20}},
		"Linux's limit alone":    {&drivers.Resources{LinuxResources: linux}, spec.Resources{CPUShares: 500, CPUFraction: 0.25, MemoryBytes: 512 << 20}},
		"nothing":                {nil, spec.Resources{}},
	} {
		got, err := resourcesOf(tc.given, "1")
		if err != nil || got.CPUs < 1 || got.CPUSet != "1" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		got.CPUs, got.CPUSet, got.SwapAccounting = 0, "", false // the machine's, and the author's
		if got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}
