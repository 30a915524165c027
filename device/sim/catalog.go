// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
)

// product is one row of the catalog: go-nvml's description of a GPU, and the
// traits that it leaves out.
type product struct {
	gpus.Config
	bar1MiB      uint64
	powerWatts   uint32
	coreMHz      uint32
	memoryMHz    uint32
	pcieGen      int
	nvlinks      int
	rowRemapping bool
	// unified GPUs have the host's memory: MemoryMB is then the host's.
	unified bool
}

// catalog holds the GPUs that a topology file can name. Memory is what NVML
// reports on the real card.
var catalog = map[string]product{
	"T4": {
		Config:  gpus.Config{Name: "Tesla T4", Architecture: nvml.DEVICE_ARCH_TURING, Brand: nvml.BRAND_NVIDIA, MemoryMB: 15360, CudaMajor: 7, CudaMinor: 5, PciDeviceId: 0x1EB810DE},
		bar1MiB: 256, powerWatts: 70, coreMHz: 1590, memoryMHz: 5001, pcieGen: 3,
	},
	"V100": {
		Config:  gpus.Config{Name: "Tesla V100-SXM2-32GB", Architecture: nvml.DEVICE_ARCH_VOLTA, Brand: nvml.BRAND_TESLA, MemoryMB: 32768, CudaMajor: 7, CudaMinor: 0, PciDeviceId: 0x1DB510DE},
		bar1MiB: 32768, powerWatts: 300, coreMHz: 1530, memoryMHz: 877, pcieGen: 3, nvlinks: 6,
	},
	"GB10": {
		Config:  gpus.Config{Name: "NVIDIA GB10", Architecture: nvml.DEVICE_ARCH_BLACKWELL, Brand: nvml.BRAND_NVIDIA, MemoryMB: 122502, CudaMajor: 12, CudaMinor: 1, PciDeviceId: 0x2E1210DE},
		coreMHz: 3003, pcieGen: 5, unified: true,
	},
	"A30":       {Config: renamed(gpus.A30_PCIE_24GB, "NVIDIA A30", 24576), bar1MiB: 32768, powerWatts: 165, coreMHz: 1440, memoryMHz: 1215, pcieGen: 4, rowRemapping: true},
	"A100-40GB": {Config: renamed(gpus.A100_SXM4_40GB, "NVIDIA A100-SXM4-40GB", 40960), bar1MiB: 65536, powerWatts: 400, coreMHz: 1410, memoryMHz: 1215, pcieGen: 4, nvlinks: 12, rowRemapping: true},
	"A100-80GB": {Config: renamed(gpus.A100_SXM4_80GB, "NVIDIA A100-SXM4-80GB", 81920), bar1MiB: 131072, powerWatts: 400, coreMHz: 1410, memoryMHz: 1593, pcieGen: 4, nvlinks: 12, rowRemapping: true},
	"H100":      {Config: renamed(gpus.H100_SXM5_80GB, "NVIDIA H100 80GB HBM3", 81559), bar1MiB: 131072, powerWatts: 700, coreMHz: 1980, memoryMHz: 2619, pcieGen: 5, nvlinks: 18, rowRemapping: true},
	"H200":      {Config: measured(renamed(gpus.H200_SXM5_141GB, "NVIDIA H200", 143771), h200), bar1MiB: 262144, powerWatts: 700, coreMHz: 1980, memoryMHz: 3201, pcieGen: 5, nvlinks: 18, rowRemapping: true},
	"B200":      {Config: renamed(gpus.B200_SXM5_180GB, "NVIDIA B200", 183359), bar1MiB: 262144, powerWatts: 1000, coreMHz: 1965, memoryMHz: 3996, pcieGen: 5, nvlinks: 18, rowRemapping: true},
}

// renamed corrects go-nvml's table: it has marketing names and nominal memory. The MIG
// profiles shrink with the memory, to their share of it at most, so that their names stay
// right.
func renamed(c gpus.Config, name string, memoryMiB uint64) gpus.Config {
	profiles := maps.Clone(c.MIGProfiles.GpuInstanceProfiles)
	all := profiles[nvml.GPU_INSTANCE_PROFILE_4_SLICE].Id
	if _, sevenths := profiles[nvml.GPU_INSTANCE_PROFILE_7_SLICE]; sevenths {
		all = nvml.GPU_INSTANCE_PROFILE_7_SLICE
		// Its places on later GPUs count slices of compute instead of memory, and would let
		// instances lie beside each other that NVIDIA's driver refuses.
		c.MIGProfiles.GpuInstancePlacements = gpus.A100_SXM4_40GB.MIGProfiles.GpuInstancePlacements
	}
	size := func(profile int) uint64 { return uint64(c.MIGProfiles.GpuInstancePlacements[profile][0].Size) }
	for id, info := range profiles {
		share := memoryMiB * size(id) / size(int(all))
		info.MemorySizeMB = min(share, info.MemorySizeMB*memoryMiB/max(memoryMiB, c.MemoryMB))
		profiles[id] = info
	}
	c.Name, c.MemoryMB, c.MIGProfiles.GpuInstanceProfiles = name, memoryMiB, profiles
	return c
}

// h200 are the memory in MiB and the multiprocessors of an H200's profiles, as it told them.
var h200 = map[int][2]uint64{
	nvml.GPU_INSTANCE_PROFILE_1_SLICE: {16384, 16}, nvml.GPU_INSTANCE_PROFILE_2_SLICE: {33280, 32}, nvml.GPU_INSTANCE_PROFILE_3_SLICE: {71424, 60},
	nvml.GPU_INSTANCE_PROFILE_4_SLICE: {71424, 64}, nvml.GPU_INSTANCE_PROFILE_7_SLICE: {143360, 132}, nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1: {16384, 16},
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2: {33280, 26},
}

func measured(c gpus.Config, profiles map[int][2]uint64) gpus.Config {
	for profile, size := range profiles {
		info := c.MIGProfiles.GpuInstanceProfiles[profile]
		info.MemorySizeMB, info.MultiprocessorCount = size[0], uint32(size[1])
		c.MIGProfiles.GpuInstanceProfiles[profile] = info
	}
	return c
}

// Models are the names that a topology file may use, sorted.
func Models() []string {
	names := make([]string, 0, len(catalog))
	for name := range catalog {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
