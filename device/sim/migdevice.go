// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// maxMIG is how many instances NVML can list on one GPU.
const maxMIG = 7

func (g *gpu) GetMigMode() (int, int, nvml.Return) {
	if len(g.kind.MIGProfiles.GpuInstanceProfiles) == 0 {
		return 0, 0, nvml.ERROR_NOT_SUPPORTED
	}
	mode := nvml.DEVICE_MIG_DISABLE
	if g.machine.hardware.get(g.uuid).MIG {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	return mode, mode, g.failure("GetMigMode")
}

// SetMigMode refuses while a process is on the GPU, as the driver does.
func (g *gpu) SetMigMode(mode int) (nvml.Return, nvml.Return) {
	if ret := g.failure("SetMigMode"); ret != nvml.SUCCESS {
		return ret, ret
	}
	if len(g.kind.MIGProfiles.GpuInstanceProfiles) == 0 {
		return nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_SUPPORTED
	}
	if len(g.condition().Processes) > 0 {
		return nvml.SUCCESS, nvml.ERROR_IN_USE
	}
	return g.change(func(s *settings) {
		s.MIG = mode == nvml.DEVICE_MIG_ENABLE
		s.Instances = nil
	}), nvml.SUCCESS
}

func (g *gpu) change(f func(*settings)) nvml.Return {
	if err := g.machine.hardware.change(g.uuid, f); err != nil {
		return nvml.ERROR_UNKNOWN
	}
	return nvml.SUCCESS
}

func (g *gpu) IsMigDeviceHandle() (bool, nvml.Return) { return false, nvml.SUCCESS }
func (g *gpu) GetMaxMigDeviceCount() (int, nvml.Return) {
	return maxMIG, g.failure("GetMaxMigDeviceCount")
}

// GetMigDeviceHandleByIndex lists the instances that have a compute instance.
func (g *gpu) GetMigDeviceHandleByIndex(index int) (nvml.Device, nvml.Return) {
	if ret := g.failure("GetMigDeviceHandleByIndex"); ret != nvml.SUCCESS {
		return nil, ret
	}
	all := g.migDevices()
	if index < 0 || index >= len(all) {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return all[index], nvml.SUCCESS
}

func (g *gpu) migDevices() []*migDevice {
	var all []*migDevice
	for _, i := range g.machine.hardware.get(g.uuid).Instances {
		if i.Compute >= 0 {
			all = append(all, &migDevice{Device: g.machine.unsupported.device, parent: g, instance: i})
		}
	}
	return all
}

func (g *gpu) GetGpuInstanceProfileInfo(profile int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	if profile < 0 || profile >= profileCount {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	info, ok := g.kind.MIGProfiles.GpuInstanceProfiles[profile]
	if !ok {
		return info, nvml.ERROR_NOT_SUPPORTED
	}
	info.Id = profileID(profile)
	return answer(g, "GetGpuInstanceProfileInfo", info)
}

func (g *gpu) GetGpuInstancePossiblePlacements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	return answer(g, "GetGpuInstancePossiblePlacements", g.kind.MIGProfiles.GpuInstancePlacements[profileOf(info.Id)])
}

func (g *gpu) GetGpuInstances(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
	if !g.machine.hardware.get(g.uuid).MIG {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	var found []nvml.GpuInstance
	for _, i := range g.machine.hardware.get(g.uuid).Instances {
		if i.Profile == profileOf(info.Id) {
			found = append(found, newGPUInstance(g, i.ID))
		}
	}
	return answer(g, "GetGpuInstances", found)
}

func (g *gpu) GetGpuInstanceById(id int) (nvml.GpuInstance, nvml.Return) {
	if _, ok := g.instance(id); !ok {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return newGPUInstance(g, id), g.failure("GetGpuInstanceById")
}

func (g *gpu) instance(id int) (instance, bool) {
	all := g.machine.hardware.get(g.uuid).Instances
	at := slices.IndexFunc(all, func(i instance) bool { return i.ID == id })
	if at < 0 {
		return instance{}, false
	}
	return all[at], true
}

// CreateGpuInstanceWithPlacement makes an instance in one of its profile's places that is
// free. Where the driver puts one that is given no place is not simulated.
func (g *gpu) CreateGpuInstanceWithPlacement(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	if ret := g.failure("CreateGpuInstance"); ret != nvml.SUCCESS {
		return nil, ret
	}
	profile := profileOf(info.Id)
	switch {
	case !g.machine.hardware.get(g.uuid).MIG:
		return nil, nvml.ERROR_NOT_SUPPORTED
	case !slices.Contains(g.kind.MIGProfiles.GpuInstancePlacements[profile], *at):
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	id, fits := 0, false
	ret := g.change(func(s *settings) {
		if fits = g.kind.fits(profile, *at, s.Instances); fits {
			id = nextID(s.Instances)
			s.Instances = append(slices.Clone(s.Instances), instance{ID: id, Profile: profile, Start: at.Start, Size: at.Size, Compute: -1})
		}
	})
	if ret == nvml.SUCCESS && !fits {
		ret = nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return newGPUInstance(g, id), nvml.SUCCESS
}

// migDevice is a MIG instance as a device of its own.
type migDevice struct {
	nvml.Device
	parent   *gpu
	instance instance
}

// uuid is made of the place, so that the same layout has the same UUIDs.
func (d *migDevice) uuid() string {
	return uuid("MIG-", fmt.Sprintf("%s/%d/%d", d.parent.uuid, d.instance.Profile, d.instance.Start))
}

func (d *migDevice) info() nvml.GpuInstanceProfileInfo {
	return d.parent.kind.MIGProfiles.GpuInstanceProfiles[d.instance.Profile]
}

func (d *migDevice) IsMigDeviceHandle() (bool, nvml.Return) { return true, nvml.SUCCESS }
func (d *migDevice) GetUUID() (string, nvml.Return)         { return answer(d.parent, "GetUUID", d.uuid()) }

func (d *migDevice) GetName() (string, nvml.Return) {
	name := d.parent.kind.Name + " MIG " + d.parent.kind.profileName(d.instance.Profile)
	return answer(d.parent, "GetName", name)
}

func (d *migDevice) GetGpuInstanceId() (int, nvml.Return) {
	return answer(d.parent, "GetGpuInstanceId", d.instance.ID)
}

func (d *migDevice) GetComputeInstanceId() (int, nvml.Return) {
	return answer(d.parent, "GetComputeInstanceId", 0)
}

func (d *migDevice) GetDeviceHandleFromMigDeviceHandle() (nvml.Device, nvml.Return) {
	return d.parent, nvml.SUCCESS
}

func (d *migDevice) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	info := d.info()
	return answer(d.parent, "GetAttributes", nvml.DeviceAttributes{
		MultiprocessorCount:   info.MultiprocessorCount,
		GpuInstanceSliceCount: info.SliceCount, ComputeInstanceSliceCount: info.SliceCount,
		MemorySizeMB: info.MemorySizeMB,
	})
}

func (d *migDevice) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	total := d.info().MemorySizeMB << 20
	used := min(d.parent.usedMiB(d.uuid())<<20, total)
	return answer(d.parent, "GetMemoryInfo", nvml.Memory{Total: total, Used: used, Free: total - used})
}

func (d *migDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return answer(d.parent, "GetComputeRunningProcesses", d.parent.processes(d.uuid(), computes))
}

func (d *migDevice) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return answer(d.parent, "GetMPSComputeRunningProcesses", d.parent.processes(d.uuid(), isClient))
}
