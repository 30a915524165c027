// SPDX-License-Identifier: MPL-2.0

package driver

import (
	goruntime "runtime"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// resourcesOf translates what Nomad reserved for a task, and the cores that its
// author names.
func resourcesOf(r *drivers.Resources, cpusetCPUs string) (spec.Resources, error) {
	all := spec.Resources{CPUs: goruntime.NumCPU(), SwapAccounting: cgroups.SwapAccounting()}
	var err error
	if all.CPUSet, err = cgroups.CPUs(r, cpusetCPUs, cgroups.Unified()); err != nil || r == nil {
		return all, err
	}
	if l := r.LinuxResources; l != nil {
		all.CPUShares, all.CPUFraction = l.CPUShares, l.PercentTicks
		all.MemoryBytes = l.MemoryLimitBytes
	}
	if n := r.NomadResources; n != nil {
		all.MemoryBytes = n.Memory.MemoryMB << 20
		all.MemoryMaxBytes = n.Memory.MemoryMaxMB << 20 // -1 for no limit stays below 0
	}
	return all, nil
}
