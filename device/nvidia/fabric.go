// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// fabric finds a GPU that NVSwitches join to others and that has not been let in:
// all looks well there, and every CUDA program fails with error 802. GPUs without
// a fabric, and drivers before 535, have no such state.
func (b *Backend) fabric(d nvml.Device) []hardware.Problem {
	if !b.has(symbolFabric) {
		return nil
	}
	// Every driver from 535 on has this call; the later one is there from 550 on, and
	// tells no more of this.
	info, ret := d.GetGpuFabricInfo()
	if ret != nvml.SUCCESS {
		return nil
	}
	const action = "see whether nvidia-fabricmanager runs and is of the driver's version (systemctl status nvidia-fabricmanager); it is healthy again when the fabric is ready"
	switch info.State {
	case nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.GPU_FABRIC_STATE_IN_PROGRESS:
		return []hardware.Problem{{Code: "fabric-not-ready", Message: "the NVLink fabric has not let the GPU in, and no CUDA program works on it", Action: action}}
	case nvml.GPU_FABRIC_STATE_COMPLETED:
		if status := nvml.Return(info.Status); status != nvml.SUCCESS {
			return []hardware.Problem{{Code: "fabric-failed", Message: "the NVLink fabric refuses the GPU: " + describe(status), Action: action}}
		}
	}
	return nil
}
