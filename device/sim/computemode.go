// SPDX-License-Identifier: MPL-2.0

package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// A GPU has a compute mode of its own, and with MIG each instance has one instead.
// What an earlier driver knew, EXCLUSIVE_THREAD, is taken for EXCLUSIVE_PROCESS.

func (g *gpu) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	if g.machine.hardware.get(g.uuid).MIG {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	return answer(g, "GetComputeMode", g.machine.computeMode(g.uuid))
}

// SetComputeMode is not supported where the memory is the host's, as on Tegra.
func (g *gpu) SetComputeMode(mode nvml.ComputeMode) nvml.Return {
	if g.kind.unified || g.machine.hardware.get(g.uuid).MIG {
		return nvml.ERROR_NOT_SUPPORTED
	}
	if ret := g.failure("SetComputeMode"); ret != nvml.SUCCESS {
		return ret
	}
	return g.machine.setComputeMode(g.uuid, mode)
}

func (d *migDevice) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return answer(d.parent, "GetComputeMode", d.parent.machine.computeMode(d.uuid()))
}

func (d *migDevice) SetComputeMode(mode nvml.ComputeMode) nvml.Return {
	if ret := d.parent.failure("SetComputeMode"); ret != nvml.SUCCESS {
		return ret
	}
	return d.parent.machine.setComputeMode(d.uuid(), mode)
}

func (m *Machine) computeMode(uuid string) nvml.ComputeMode {
	return nvml.ComputeMode(m.hardware.get(uuid).ComputeMode)
}

func (m *Machine) setComputeMode(uuid string, mode nvml.ComputeMode) nvml.Return {
	if mode < nvml.COMPUTEMODE_DEFAULT || mode >= nvml.COMPUTEMODE_COUNT {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if mode == nvml.COMPUTEMODE_EXCLUSIVE_THREAD {
		mode = nvml.COMPUTEMODE_EXCLUSIVE_PROCESS
	}
	if err := m.hardware.change(uuid, func(s *settings) { s.ComputeMode = int32(mode) }); err != nil {
		return nvml.ERROR_UNKNOWN
	}
	return nvml.SUCCESS
}
