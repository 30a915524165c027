// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"slices"
	"strings"

	nvlib "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// instance is a MIG instance as hardware.json keeps it: a GPU instance with, at
// most, one compute instance that fills it.
type instance struct {
	// ID numbers GPU instances of one GPU.
	ID int `json:"id"`
	// Profile is NVML's number of the GPU instance profile.
	Profile int    `json:"profile"`
	Start   uint32 `json:"start"`
	Size    uint32 `json:"size"`
	// Compute is NVML's number of the compute instance's profile, -1 while there
	// is none.
	Compute int `json:"compute"`
}

// profileCount is how many numbers of profiles drivers know, and profileIDs the IDs that
// an H200 was seen to give them: NVML takes a profile's number, and not its ID.
const profileCount = 17

var profileIDs = map[int]uint32{
	nvml.GPU_INSTANCE_PROFILE_1_SLICE: 19, nvml.GPU_INSTANCE_PROFILE_2_SLICE: 14, nvml.GPU_INSTANCE_PROFILE_3_SLICE: 9,
	nvml.GPU_INSTANCE_PROFILE_4_SLICE: 5, nvml.GPU_INSTANCE_PROFILE_7_SLICE: 0, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1: 20,
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2: 15,
}

func profileID(profile int) uint32 {
	if id, known := profileIDs[profile]; known {
		return id
	}
	return 100 + uint32(profile)
}

// profileOf is the number of the profile with an ID, -1 where none has it.
func profileOf(id uint32) int {
	for profile := range profileCount {
		if profileID(profile) == id {
			return profile
		}
	}
	return -1
}

// profileName is NVIDIA's name of a GPU instance profile, such as "1g.10gb".
func (p product) profileName(profile int) string {
	info := p.MIGProfiles.GpuInstanceProfiles[profile]
	named, err := nvlib.New(nil).NewMigProfile(profile, computeProfile(profile), 0, info.MemorySizeMB, p.MemoryMB<<20)
	if err != nil {
		return fmt.Sprintf("profile-%d", profile)
	}
	return named.String()
}

// computeProfile is the compute instance profile that fills a GPU instance.
func computeProfile(profile int) int {
	switch profile {
	case nvml.GPU_INSTANCE_PROFILE_2_SLICE, nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:
		return nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE
	case nvml.GPU_INSTANCE_PROFILE_3_SLICE:
		return nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE
	case nvml.GPU_INSTANCE_PROFILE_4_SLICE:
		return nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE
	case nvml.GPU_INSTANCE_PROFILE_7_SLICE:
		return nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE
	default:
		return nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE
	}
}

// profiles lists the names of a product's MIG profiles, sorted.
func (p product) profiles() map[string]int {
	names := map[string]int{}
	for id := range p.MIGProfiles.GpuInstanceProfiles {
		names[p.profileName(id)] = id
	}
	return names
}

// layOut places instances of the named profiles on an empty GPU.
func layOut(p product, names []string) ([]instance, error) {
	known := p.profiles()
	if len(names) > 0 && len(known) == 0 {
		return nil, fmt.Errorf("%s has no MIG", p.Name)
	}
	var placed []instance
	for _, name := range names {
		id, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("profile %q is not one of %s", name, strings.Join(sortedKeys(known), ", "))
		}
		at, ok := p.free(id, placed)
		if !ok {
			return nil, fmt.Errorf("no room for %q beside %d other instances", name, len(placed))
		}
		placed = append(placed, instance{ID: nextID(placed), Profile: id, Start: at.Start, Size: at.Size, Compute: computeProfile(id)})
	}
	return placed, nil
}

// free finds the first place of a profile that is free.
func (p product) free(profile int, placed []instance) (nvml.GpuInstancePlacement, bool) {
	for _, at := range p.MIGProfiles.GpuInstancePlacements[profile] {
		if p.fits(profile, at, placed) {
			return at, true
		}
	}
	return nvml.GpuInstancePlacement{}, false
}

// fits reports whether a place is free, and the GPU can have one more of the profile.
func (p product) fits(profile int, at nvml.GpuInstancePlacement, placed []instance) bool {
	count := uint32(1)
	for _, i := range placed {
		if i.Profile == profile {
			count++
		}
		if at.Start < i.Start+i.Size && i.Start < at.Start+at.Size {
			return false
		}
	}
	return count <= p.MIGProfiles.GpuInstanceProfiles[profile].InstanceCount
}

func nextID(placed []instance) int {
	next := 1
	for _, i := range placed {
		next = max(next, i.ID+1)
	}
	return next
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
