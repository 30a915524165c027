// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpuInstance is the outer half of a MIG instance: its memory and engines.
type gpuInstance struct {
	nvml.GpuInstance
	gpu *gpu
	id  int
}

func newGPUInstance(g *gpu, id int) *gpuInstance {
	return &gpuInstance{GpuInstance: g.machine.unsupported.gi, gpu: g, id: id}
}

func (gi *gpuInstance) GetInfo() (nvml.GpuInstanceInfo, nvml.Return) {
	i, ok := gi.gpu.instance(gi.id)
	if !ok {
		return nvml.GpuInstanceInfo{}, nvml.ERROR_NOT_FOUND
	}
	return nvml.GpuInstanceInfo{Device: gi.gpu, Id: uint32(i.ID), ProfileId: profileID(i.Profile),
		Placement: nvml.GpuInstancePlacement{Start: i.Start, Size: i.Size}}, nvml.SUCCESS
}

func (gi *gpuInstance) GetComputeInstanceProfileInfo(profile, _ int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	i, ok := gi.gpu.instance(gi.id)
	if !ok {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_FOUND
	}
	info, ok := gi.gpu.kind.MIGProfiles.ComputeInstanceProfiles[i.Profile][profile]
	if !ok {
		return info, nvml.ERROR_NOT_SUPPORTED
	}
	return info, nvml.SUCCESS
}

func (gi *gpuInstance) GetComputeInstances(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
	i, ok := gi.gpu.instance(gi.id)
	if !ok || i.Compute != int(info.Id) {
		return nil, nvml.SUCCESS
	}
	return []nvml.ComputeInstance{&computeInstance{ComputeInstance: gi.gpu.machine.unsupported.ci, gi: gi}}, nvml.SUCCESS
}

func (gi *gpuInstance) CreateComputeInstance(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	if ret := gi.gpu.failure("CreateComputeInstance"); ret != nvml.SUCCESS {
		return nil, ret
	}
	i, ok := gi.gpu.instance(gi.id)
	if !ok || i.Compute >= 0 {
		return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	ret := gi.set(func(i *instance) { i.Compute = int(info.Id) })
	return &computeInstance{ComputeInstance: gi.gpu.machine.unsupported.ci, gi: gi}, ret
}

// Destroy refuses while the compute instance is there, as the driver does.
func (gi *gpuInstance) Destroy() nvml.Return {
	if ret := gi.gpu.failure("GpuInstanceDestroy"); ret != nvml.SUCCESS {
		return ret
	}
	i, ok := gi.gpu.instance(gi.id)
	switch {
	case !ok:
		return nvml.ERROR_NOT_FOUND
	case i.Compute >= 0:
		return nvml.ERROR_IN_USE
	}
	return gi.gpu.change(func(s *settings) {
		s.Instances = slices.DeleteFunc(slices.Clone(s.Instances), func(i instance) bool { return i.ID == gi.id })
	})
}

func (gi *gpuInstance) set(change func(*instance)) nvml.Return {
	return gi.gpu.change(func(s *settings) {
		s.Instances = slices.Clone(s.Instances)
		for n := range s.Instances {
			if s.Instances[n].ID == gi.id {
				change(&s.Instances[n])
			}
		}
	})
}

// computeInstance is the inner half: the multiprocessors.
type computeInstance struct {
	nvml.ComputeInstance
	gi *gpuInstance
}

func (ci *computeInstance) GetInfo() (nvml.ComputeInstanceInfo, nvml.Return) {
	i, ok := ci.gi.gpu.instance(ci.gi.id)
	if !ok || i.Compute < 0 {
		return nvml.ComputeInstanceInfo{}, nvml.ERROR_NOT_FOUND
	}
	return nvml.ComputeInstanceInfo{Device: ci.gi.gpu, GpuInstance: ci.gi, ProfileId: uint32(i.Compute)}, nvml.SUCCESS
}

// Destroy refuses while a process runs on the instance.
func (ci *computeInstance) Destroy() nvml.Return {
	i, ok := ci.gi.gpu.instance(ci.gi.id)
	if !ok || i.Compute < 0 {
		return nvml.ERROR_NOT_FOUND
	}
	g := ci.gi.gpu
	if ret := g.failure("ComputeInstanceDestroy"); ret != nvml.SUCCESS {
		return ret
	}
	uuid := (&migDevice{parent: g, instance: i}).uuid()
	if slices.ContainsFunc(g.condition().Processes, func(p Process) bool { return p.Instance == uuid }) {
		return nvml.ERROR_IN_USE
	}
	return ci.gi.set(func(i *instance) { i.Compute = -1 })
}
