// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// findInstances adds a GPU's MIG instances. What cannot be seen of them is said,
// so that it does not pass for gone.
func findInstances(d nvml.Device, totalBytes uint64, g *hardware.GPU) {
	fail := func(ret nvml.Return, doing string) {
		p := problemOf(ret, doing)
		g.PartitionProblem = &p
	}
	mode, _, ret := d.GetMigMode()
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		return
	case ret != nvml.SUCCESS:
		fail(ret, "reading the GPU's MIG mode")
		return
	case mode != nvml.DEVICE_MIG_ENABLE:
		return
	}
	g.Partitioned = true
	count, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		fail(ret, "counting the GPU's MIG instances")
		return
	}
	for i := range count {
		m, ret := d.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		uuid := ""
		if ret == nvml.SUCCESS {
			uuid, ret = m.GetUUID()
		}
		if ret != nvml.SUCCESS {
			fail(ret, "finding the GPU's MIG instances")
			continue
		}
		g.Partitions = append(g.Partitions, instance(m, uuid, totalBytes))
	}
}

func instance(m nvml.Device, uuid string, totalBytes uint64) hardware.Partition {
	i := hardware.Partition{UUID: uuid}
	attributes, ret := m.GetAttributes()
	if ret != nvml.SUCCESS {
		i.Problems = []hardware.Problem{problemOf(ret, "reading the MIG instance's attributes")}
		return i
	}
	i.MemoryMiB = int64(attributes.MemorySizeMB)
	i.Name, _ = m.GetName()
	i.GI, _ = m.GetGpuInstanceId()
	i.CI, _ = m.GetComputeInstanceId()
	i.Profile = profileName(i.Name, attributes, totalBytes)
	return i
}

// profileName is NVIDIA's name of an instance's size. NVML's name of the device
// ends with it; drivers that leave it out are helped by the same rounding that
// nvidia-smi does: the share of the GPU's memory in eighths, rounded up.
func profileName(name string, a nvml.DeviceAttributes, totalBytes uint64) string {
	if _, profile, found := strings.Cut(name, " MIG "); found && profile != "" {
		return profile
	}
	const eighths = 8
	share := math.Ceil(float64(a.MemorySizeMB<<20)/float64(totalBytes)*eighths) / eighths
	gigabytes := int64(math.Round(share * math.Ceil(float64(totalBytes)/(1<<30))))
	if a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount {
		return fmt.Sprintf("%dc.%dg.%dgb", a.ComputeInstanceSliceCount, a.GpuInstanceSliceCount, gigabytes)
	}
	return fmt.Sprintf("%dg.%dgb", a.GpuInstanceSliceCount, gigabytes)
}
