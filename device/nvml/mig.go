package nvml

import (
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// instances lists a GPU's MIG instances. An instance that does not answer is
// left out: the others are offered all the same.
func instances(d nvml.Device, totalBytes uint64) (bool, []hardware.Instance) {
	mode, _, ret := d.GetMigMode()
	if ret != nvml.SUCCESS || mode != nvml.DEVICE_MIG_ENABLE {
		return false, nil
	}
	count, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return true, nil
	}
	var found []hardware.Instance
	for i := range count {
		m, ret := d.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		if one, ok := instance(m, totalBytes); ok {
			found = append(found, one)
		}
	}
	return true, found
}

func instance(m nvml.Device, totalBytes uint64) (hardware.Instance, bool) {
	uuid, ret := m.GetUUID()
	if ret != nvml.SUCCESS {
		return hardware.Instance{}, false
	}
	attributes, ret := m.GetAttributes()
	if ret != nvml.SUCCESS {
		return hardware.Instance{}, false
	}
	i := hardware.Instance{UUID: uuid, MemoryMiB: int64(attributes.MemorySizeMB)}
	i.Name, _ = m.GetName()
	i.GI, _ = m.GetGpuInstanceId()
	i.CI, _ = m.GetComputeInstanceId()
	i.Profile = profileName(i.Name, attributes, totalBytes)
	return i, true
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
