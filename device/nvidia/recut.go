// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// MIGPlaces are the profiles that a GPU can have, and the places of its instances.
func (b *Backend) MIGPlaces(uuid string) ([]gpu.MIGProfile, []gpu.MIGInstance, error) {
	type answer struct {
		profiles  []gpu.MIGProfile
		instances []gpu.MIGInstance
		err       error
	}
	found, err := on(b, uuid, uuid, func(d nvml.Device) answer {
		profiles, instances, err := b.migPlaces(d)
		return answer{profiles, instances, err}
	})
	return found.profiles, found.instances, errors.Join(err, found.err)
}

func (b *Backend) migPlaces(d nvml.Device) ([]gpu.MIGProfile, []gpu.MIGInstance, error) {
	l, err := b.layoutOf(d)
	if err != nil {
		return nil, nil, err
	}
	named := map[int]string{}
	var profiles []gpu.MIGProfile
	all := uint32(1)
	for _, info := range l.profiles {
		all = max(all, info.SliceCount)
	}
	for _, name := range slices.Sorted(maps.Keys(l.names)) {
		id := l.names[name]
		named[id] = name
		info := l.profiles[id]
		p := gpu.MIGProfile{Name: name, Most: int(info.InstanceCount), MemoryMiB: int64(info.MemorySizeMB), Milli: int64(info.SliceCount) * gpu.MilliPerGPU / int64(all)}
		for _, at := range l.places[id] {
			p.Size, p.Starts = int(at.Size), append(p.Starts, int(at.Start))
		}
		profiles = append(profiles, p)
	}
	byGI := map[int]gpu.MIGPlace{}
	for _, p := range l.there {
		info, ret := p.gi.GetInfo()
		if ret != nvml.SUCCESS {
			return nil, nil, fmt.Errorf("find GPU instances: %w", returnError(ret))
		}
		byGI[int(info.Id)] = gpu.MIGPlace{Profile: named[p.profile], Start: int(p.at.Start)}
	}
	count, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, nil, fmt.Errorf("count MIG instances: %w", returnError(ret))
	}
	var instances []gpu.MIGInstance
	for i := range count {
		m, ret := d.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		var uuid string
		var gi int
		if ret == nvml.SUCCESS {
			uuid, ret = m.GetUUID()
		}
		if ret == nvml.SUCCESS {
			gi, ret = m.GetGpuInstanceId()
		}
		if ret != nvml.SUCCESS {
			return nil, nil, fmt.Errorf("find MIG instances: %w", returnError(ret))
		}
		at, known := byGI[gi]
		if !known {
			return nil, nil, fmt.Errorf("find MIG instances: the place of %s is not known", uuid)
		}
		instances = append(instances, gpu.MIGInstance{UUID: uuid, MIGPlace: at})
	}
	slices.SortFunc(instances, func(a, b gpu.MIGInstance) int { return a.Start - b.Start })
	return profiles, instances, nil
}

// Recut removes the instances that are at some places, and makes others. Removed ones that are
// gone already and made ones that are there already are no error, so that an attempt that was
// cut short can be repeated. Other instances are not touched.
//
// It can take seconds and is not bounded: call it in the background.
func (b *Backend) Recut(uuid string, remove, add []gpu.MIGPlace) error {
	b.gate.RLock()
	defer b.gate.RUnlock()
	d, err := b.placing(uuid)
	if err != nil {
		return err
	}
	l, err := b.layoutOf(d)
	if err != nil {
		return err
	}
	at := func(p placed, places []gpu.MIGPlace) bool {
		return slices.ContainsFunc(places, func(at gpu.MIGPlace) bool { return l.names[at.Profile] == p.profile && int(p.at.Start) == at.Start })
	}
	for _, p := range l.there {
		// An instance without a compute instance is an attempt that was cut short.
		if at(p, remove) || at(p, add) && !p.whole {
			if err := destroy(p.gi); err != nil {
				return err
			}
		}
	}
	for _, place := range add {
		id, known := l.names[place.Profile]
		if !known {
			return fmt.Errorf("profile %q is not one of %v", place.Profile, slices.Sorted(maps.Keys(l.names)))
		}
		if slices.ContainsFunc(l.there, func(p placed) bool { return p.whole && at(p, []gpu.MIGPlace{place}) && !at(p, remove) }) {
			continue
		}
		n := slices.IndexFunc(l.places[id], func(p nvml.GpuInstancePlacement) bool { return int(p.Start) == place.Start })
		if n < 0 {
			return fmt.Errorf("place %s is not valid (profile %s begins at %v)", place, place.Profile, l.places[id])
		}
		if err := l.create(placed{profile: id, at: l.places[id][n]}); err != nil {
			return err
		}
	}
	return nil
}
