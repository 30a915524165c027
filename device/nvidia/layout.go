// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	nvlib "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Layout gives a GPU the MIG instances of the named profiles. Instances of a wanted
// profile stay as they are, with their UUIDs, where the others find places beside them;
// those in the way are removed and made elsewhere. If that fails, the former instances are
// put back. NVML itself refuses to remove an instance on which something runs.
//
// It can take seconds and is not bounded: call it in the background.
func (b *Backend) Layout(uuid string, profiles []string) error {
	b.gate.RLock()
	defer b.gate.RUnlock()
	d, err := b.placing(uuid)
	if err != nil {
		return err
	}
	if err := enableMIG(d); err != nil {
		return err
	}
	l, err := b.layoutOf(d)
	if err != nil {
		return err
	}
	wanted := map[int]int{}
	for _, name := range profiles {
		id, ok := l.names[name]
		if !ok {
			return fmt.Errorf("profile %q is not one of %s", name, strings.Join(slices.Sorted(maps.Keys(l.names)), ", "))
		}
		wanted[id]++
	}
	for name, id := range l.names {
		if most := int(l.profiles[id].InstanceCount); wanted[id] > most {
			return fmt.Errorf("%d of profile %q are not valid (at most %d on this GPU)", wanted[id], name, most)
		}
	}
	stay, add, ok := arrange(l.places, l.there, wanted)
	if !ok {
		return fmt.Errorf("profiles [%s] are not valid (no places on this GPU have room for all of them)", strings.Join(profiles, " "))
	}
	return l.change(stay, add)
}

// placing is a GPU whose instances can be placed; the caller holds gate.
func (b *Backend) placing(uuid string) (nvml.Device, error) {
	if err := b.open(); err != nil {
		return nil, err
	}
	d, err := b.handle(uuid)
	if err == nil && !b.has(symbolPlacement) {
		err = errors.New("the driver's library cannot place MIG instances; install a driver of branch 470 or newer")
	}
	return d, err
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

// layout is a GPU's possible instances, and the present ones.
type layout struct {
	d        nvml.Device
	profiles map[int]nvml.GpuInstanceProfileInfo
	places   map[int][]nvml.GpuInstancePlacement
	names    map[string]int
	there    []placed
}

func (b *Backend) layoutOf(d nvml.Device) (*layout, error) {
	var g hardware.GPU
	if ret := b.memoryOf(d, &g); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read memory: %w", returnError(ret))
	}
	l := &layout{d: d, profiles: map[int]nvml.GpuInstanceProfileInfo{}, places: map[int][]nvml.GpuInstancePlacement{}, names: map[string]int{}}
	for id := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := d.GetGpuInstanceProfileInfo(id)
		if ret != nvml.SUCCESS {
			continue
		}
		p, err := nvlib.New(nil).NewMigProfile(id, fillingProfile(int(info.SliceCount)), 0, info.MemorySizeMB, uint64(g.MemoryMiB)<<20)
		if err != nil {
			continue
		}
		if l.places[id], ret = d.GetGpuInstancePossiblePlacements(&info); ret != nvml.SUCCESS {
			return nil, fmt.Errorf("find the places of profile %q: %w", p, returnError(ret))
		}
		l.names[p.String()], l.profiles[id] = id, info
	}
	var err error
	l.there, err = l.instances()
	return l, err
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

// instances finds the GPU instances that are there.
func (l *layout) instances() ([]placed, error) {
	var all []placed
	for _, id := range slices.Sorted(maps.Keys(l.profiles)) {
		info := l.profiles[id]
		found, ret := l.d.GetGpuInstances(&info)
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("find GPU instances: %w", returnError(ret))
		}
		for _, gi := range found {
			self, ret := gi.GetInfo()
			if ret != nvml.SUCCESS {
				return nil, fmt.Errorf("find GPU instances: %w", returnError(ret))
			}
			all = append(all, placed{profile: id, at: self.Placement, gi: gi, whole: whole(gi, info)})
		}
	}
	return all, nil
}

// whole reports whether a GPU instance has one compute instance that fills it. Others, of an
// attempt that was cut short, say, are no device that anything could be given.
func whole(gi nvml.GpuInstance, info nvml.GpuInstanceProfileInfo) bool {
	filling, ret := gi.GetComputeInstanceProfileInfo(fillingProfile(int(info.SliceCount)), nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if ret != nvml.SUCCESS {
		return false
	}
	all, ret := gi.GetComputeInstances(&filling)
	return ret == nvml.SUCCESS && len(all) == 1
}

// change removes all instances but those that stay, and makes others.
func (l *layout) change(stay, add []placed) error {
	for _, p := range l.there {
		if slices.ContainsFunc(stay, func(s placed) bool { return s.at == p.at }) {
			continue
		}
		if err := destroy(p.gi); err != nil {
			return errors.Join(err, l.restore())
		}
	}
	for _, p := range add {
		if err := l.create(p); err != nil {
			return errors.Join(err, l.restore())
		}
	}
	return nil
}

// restore puts the former instances back, where they were, after a failure.
func (l *layout) restore() error {
	now, err := l.instances()
	if err != nil {
		return fmt.Errorf("put the former instances back: %w", err)
	}
	same := func(a placed) func(placed) bool {
		return func(b placed) bool { return a.profile == b.profile && a.at == b.at && a.whole == b.whole }
	}
	for _, p := range now {
		if slices.ContainsFunc(l.there, same(p)) {
			continue
		}
		if err := destroy(p.gi); err != nil {
			return fmt.Errorf("put the former instances back: %w", err)
		}
	}
	for _, p := range l.there {
		if !p.whole || slices.ContainsFunc(now, same(p)) {
			continue
		}
		if err := l.create(p); err != nil {
			return fmt.Errorf("put the former instances back: %w", err)
		}
	}
	return nil
}

// create makes a GPU instance in its place, with one compute instance that fills it.
func (l *layout) create(p placed) error {
	info := l.profiles[p.profile]
	gi, ret := l.d.CreateGpuInstanceWithPlacement(&info, &p.at)
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
