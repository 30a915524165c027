// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// linkTo is the GPU at the other end of a link, nil where that is an NVSwitch;
// false where nothing is. Without switches the links of a GPU are spread evenly
// over the machine's other GPUs of its model.
func (g *gpu) linkTo(link int) (*gpu, bool) {
	if link < 0 || link >= g.kind.nvlinks {
		return nil, false
	}
	if g.machine.topology.NVSwitches > 0 {
		return nil, true
	}
	var peers []*gpu
	for _, other := range g.machine.gpus {
		if other != g && other.kind.Name == g.kind.Name {
			peers = append(peers, other)
		}
	}
	if len(peers) == 0 {
		return nil, false
	}
	if at := link / max(1, g.kind.nvlinks/len(peers)); at < len(peers) {
		return peers[at], true
	}
	return nil, false
}

// GetNvLinkState is true for links that lead somewhere.
func (g *gpu) GetNvLinkState(link int) (nvml.EnableState, nvml.Return) {
	if link >= g.kind.nvlinks {
		return nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED
	}
	if _, active := g.linkTo(link); !active {
		return answer(g, "GetNvLinkState", nvml.FEATURE_DISABLED)
	}
	return answer(g, "GetNvLinkState", nvml.FEATURE_ENABLED)
}

// GetNvLinkRemoteDeviceType tells a GPU from a switch.
func (g *gpu) GetNvLinkRemoteDeviceType(link int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	g.machine.call("nvmlDeviceGetNvLinkRemoteDeviceType")
	peer, active := g.linkTo(link)
	switch {
	case !active:
		return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, nvml.ERROR_INVALID_ARGUMENT
	case peer == nil:
		return answer[nvml.IntNvLinkDeviceType](g, "GetNvLinkRemoteDeviceType", nvml.NVLINK_DEVICE_TYPE_SWITCH)
	}
	return answer[nvml.IntNvLinkDeviceType](g, "GetNvLinkRemoteDeviceType", nvml.NVLINK_DEVICE_TYPE_GPU)
}

// GetNvLinkRemotePciInfo is the address of the GPU, or of the switch.
func (g *gpu) GetNvLinkRemotePciInfo(link int) (nvml.PciInfo, nvml.Return) {
	peer, active := g.linkTo(link)
	switch {
	case !active:
		return nvml.PciInfo{}, nvml.ERROR_INVALID_ARGUMENT
	case peer == nil:
		return answer(g, "GetNvLinkRemotePciInfo", pciInfo(fmt.Sprintf("00000000:%02X:00.0", 0xD0+link%g.machine.topology.NVSwitches)))
	}
	return answer(g, "GetNvLinkRemotePciInfo", peer.pci())
}

// Joined reports whether NVLink joins two GPUs of a machine.
func (t *Topology) Joined(i, j int) bool {
	a, b := t.GPUs[i], t.GPUs[j]
	return i != j && a.nvlinks > 0 && b.nvlinks > 0 && (t.NVSwitches > 0 || a.Name == b.Name)
}

// GetGpuFabricInfo is there from Hopper on, on machines with NVSwitches.
func (g *gpu) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	g.machine.call("nvmlDeviceGetGpuFabricInfo")
	if g.machine.topology.NVSwitches == 0 || g.kind.Architecture < nvml.DEVICE_ARCH_HOPPER {
		return answer(g, "GetGpuFabricInfo", nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_NOT_SUPPORTED})
	}
	c := g.condition()
	info := nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: c.FabricStatus}
	if c.FabricState != 0 {
		info.State = c.FabricState
	}
	return answer(g, "GetGpuFabricInfo", info)
}
