package nvidia

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	nvlib "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Layout gives a GPU the MIG instances of the named profiles. Instances of a
// wanted profile stay as they are; others are removed, and missing ones made,
// the largest first. If that fails, the former instances are put back. NVML
// itself refuses to remove an instance on which something runs.
//
// It can take seconds and is not bounded: call it in the background.
func (b *Backend) Layout(uuid string, profiles []string) error {
	b.gate.RLock()
	defer b.gate.RUnlock()
	if err := b.open(); err != nil {
		return err
	}
	d, err := b.handle(uuid)
	if err != nil {
		return err
	}
	if err := enableMIG(d); err != nil {
		return err
	}
	known, err := knownProfiles(d)
	if err != nil {
		return err
	}
	wanted := map[int]int{}
	for _, name := range profiles {
		id, ok := known[name]
		if !ok {
			return fmt.Errorf("profile %q is not one of %s", name, strings.Join(names(known), ", "))
		}
		wanted[id]++
	}
	return change(d, wanted)
}

// enableMIG turns MIG on where it is off. On GPUs that need a reset for it, that
// is the operator's to do.
func enableMIG(d nvml.Device) error {
	mode, _, ret := d.GetMigMode()
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		return errors.New("the GPU has no MIG")
	case ret != nvml.SUCCESS:
		return fmt.Errorf("read MIG mode: %w", returnError(ret))
	case mode == nvml.DEVICE_MIG_ENABLE:
		return nil
	}
	ret, activation := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	if ret != nvml.SUCCESS {
		return fmt.Errorf("enable MIG: %w", returnError(ret))
	}
	if activation != nvml.SUCCESS {
		return fmt.Errorf("enable MIG: %w; reset the GPU or reboot the node", returnError(activation))
	}
	return nil
}

// knownProfiles are the GPU's own GPU instance profiles by name.
func knownProfiles(d nvml.Device) (map[string]int, error) {
	memory, ret := d.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read memory: %w", returnError(ret))
	}
	known := map[string]int{}
	for id := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(id)
		if ret != nvml.SUCCESS {
			continue
		}
		p, err := nvlib.New(nil).NewMigProfile(id, fillingProfile(int(info.SliceCount)), 0, info.MemorySizeMB, memory.Total)
		if err == nil {
			known[p.String()] = id
		}
	}
	return known, nil
}

// fillingProfile is the compute instance profile that takes all slices of a GPU
// instance.
func fillingProfile(slices int) int {
	return map[int]int{
		1: nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, 2: nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE,
		3: nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE, 4: nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE,
		6: nvml.COMPUTE_INSTANCE_PROFILE_6_SLICE, 7: nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE,
		8: nvml.COMPUTE_INSTANCE_PROFILE_8_SLICE,
	}[slices]
}

func names(known map[string]int) []string {
	all := make([]string, 0, len(known))
	for name := range known {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// change turns the instances that are there into those that are wanted, counted
// by profile.
func change(d nvml.Device, wanted map[int]int) error {
	before := map[int]int{}
	for id := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		there := gpuInstances(d, id)
		before[id] = len(there)
		for _, gi := range there[min(wanted[id], len(there)):] {
			if err := destroy(gi); err != nil {
				return errors.Join(err, fill(d, before))
			}
		}
	}
	if err := fill(d, wanted); err != nil {
		return errors.Join(err, restore(d, before))
	}
	return nil
}

// restore puts the former instances back after a failure.
func restore(d nvml.Device, before map[int]int) error {
	for id := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		there := gpuInstances(d, id)
		for _, gi := range there[min(before[id], len(there)):] {
			if err := destroy(gi); err != nil {
				return fmt.Errorf("put the former instances back: %w", err)
			}
		}
	}
	if err := fill(d, before); err != nil {
		return fmt.Errorf("put the former instances back: %w", err)
	}
	return nil
}

// fill makes the instances that are missing, those with the most slices first.
func fill(d nvml.Device, wanted map[int]int) error {
	type profile struct {
		info nvml.GpuInstanceProfileInfo
		id   int
	}
	var order []profile
	for id, count := range wanted {
		if info, ret := d.GetGpuInstanceProfileInfo(id); ret == nvml.SUCCESS && count > 0 {
			order = append(order, profile{info, id})
		}
	}
	slices.SortFunc(order, func(a, b profile) int {
		if a.info.SliceCount != b.info.SliceCount {
			return int(b.info.SliceCount) - int(a.info.SliceCount)
		}
		return a.id - b.id
	})
	for _, p := range order {
		for range wanted[p.id] - len(gpuInstances(d, p.id)) {
			if err := create(d, p.info); err != nil {
				return err
			}
		}
	}
	return nil
}

func gpuInstances(d nvml.Device, profile int) []nvml.GpuInstance {
	info, ret := d.GetGpuInstanceProfileInfo(profile)
	if ret != nvml.SUCCESS {
		return nil
	}
	all, ret := d.GetGpuInstances(&info)
	if ret != nvml.SUCCESS {
		return nil
	}
	return all
}

// create makes a GPU instance with one compute instance that fills it.
func create(d nvml.Device, info nvml.GpuInstanceProfileInfo) error {
	gi, ret := d.CreateGpuInstance(&info)
	if ret != nvml.SUCCESS {
		return fmt.Errorf("create GPU instance of %d slices: %w", info.SliceCount, returnError(ret))
	}
	ciInfo, ret := gi.GetComputeInstanceProfileInfo(fillingProfile(int(info.SliceCount)), nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if ret == nvml.SUCCESS {
		_, ret = gi.CreateComputeInstance(&ciInfo)
	}
	if ret != nvml.SUCCESS {
		return errors.Join(fmt.Errorf("create compute instance: %w", returnError(ret)), destroy(gi))
	}
	return nil
}

// destroy removes a GPU instance with its compute instances.
func destroy(gi nvml.GpuInstance) error {
	for id := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(id, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret != nvml.SUCCESS {
			continue
		}
		all, _ := gi.GetComputeInstances(&info)
		for _, ci := range all {
			if ret := ci.Destroy(); ret != nvml.SUCCESS {
				return fmt.Errorf("destroy compute instance: %w", returnError(ret))
			}
		}
	}
	if ret := gi.Destroy(); ret != nvml.SUCCESS {
		return fmt.Errorf("destroy GPU instance: %w", returnError(ret))
	}
	return nil
}
