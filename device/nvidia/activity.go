// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"math"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

const (
	// samplePause is the shortest time between two samples that NVML makes
	// sense of; after oldestSample the mean says nothing of the present.
	samplePause  = 100 * time.Millisecond
	oldestSample = 10 * time.Minute
)

// samplers keep the last sample of each device, by UUID: what a device did is
// the difference of two samples.
type samplers struct {
	mu  sync.Mutex
	all map[string]*sampler
}

// sampler holds one device's last sample, and its result.
type sampler struct {
	mu     sync.Mutex // held while NVML works on the sample
	last   nvml.GpmSample
	taken  time.Time
	latest hardware.Activity
}

// activity is how busy a device was since it was asked before. GPUs before
// Hopper and drivers before 520 do not tell, and neither does the first reading.
func (b *Backend) activity(d nvml.Device, uuid string) hardware.Activity {
	if !b.has(symbolActivity) {
		return hardware.NoActivity()
	}
	owner, sample := d, d.GpmSampleGet
	if mig, ret := d.IsMigDeviceHandle(); ret == nvml.SUCCESS && mig {
		parent, ret := d.GetDeviceHandleFromMigDeviceHandle()
		gi, ret2 := d.GetGpuInstanceId()
		if ret != nvml.SUCCESS || ret2 != nvml.SUCCESS {
			return hardware.NoActivity()
		}
		owner, sample = parent, func(s nvml.GpmSample) nvml.Return { return parent.GpmMigSampleGet(gi, s) }
	}
	if support, ret := owner.GpmQueryDeviceSupport(); ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
		return hardware.NoActivity()
	}
	return b.samplers.of(uuid).measure(b.lib, sample)
}

// of finds a device's sampler and lets go of those that were not asked for long.
func (s *samplers) of(uuid string) *sampler {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, one := range s.all {
		if other != uuid && one.free(oldestSample) {
			delete(s.all, other)
		}
	}
	if s.all[uuid] == nil {
		s.all[uuid] = &sampler{latest: hardware.NoActivity()}
	}
	return s.all[uuid]
}

// free lets go of all samples.
func (s *samplers) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uuid, one := range s.all {
		one.free(0)
		delete(s.all, uuid)
	}
}

// free lets go of a sample of some age. One that a hanging call works on stays.
func (s *sampler) free(age time.Duration) bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	if time.Since(s.taken) < age {
		return false
	}
	if s.last != nil {
		s.last.Free()
		s.last = nil
	}
	return true
}

// measure takes a sample and compares it with the one before.
func (s *sampler) measure(lib nvml.Interface, take func(nvml.GpmSample) nvml.Return) hardware.Activity {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := time.Since(s.taken)
	if s.last != nil && age < samplePause {
		return s.latest
	}
	next, ret := lib.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return hardware.NoActivity()
	}
	if take(next) != nvml.SUCCESS {
		next.Free()
		return hardware.NoActivity()
	}
	s.latest = hardware.NoActivity()
	if s.last != nil {
		if age <= oldestSample {
			s.latest = compare(lib, s.last, next)
		}
		s.last.Free()
	}
	s.last, s.taken = next, time.Now()
	return s.latest
}

// compare is what a device did between two samples.
func compare(lib nvml.Interface, before, after nvml.GpmSample) hardware.Activity {
	a := hardware.NoActivity()
	milli := func(percent float64) int64 { return int64(math.Round(min(percent, 100) * 10)) }
	bytes := func(mib float64) int64 { return int64(mib * (1 << 20)) }
	wanted := []struct {
		id    nvml.GpmMetricId
		value *int64
		in    func(float64) int64
	}{
		{nvml.GPM_METRIC_GRAPHICS_UTIL, &a.GraphicsMilli, milli},
		{nvml.GPM_METRIC_SM_UTIL, &a.SMMilli, milli},
		{nvml.GPM_METRIC_ANY_TENSOR_UTIL, &a.TensorMilli, milli},
		{nvml.GPM_METRIC_DRAM_BW_UTIL, &a.DRAMMilli, milli},
		{nvml.GPM_METRIC_PCIE_TX_PER_SEC, &a.PCIeSentBytes, bytes},
		{nvml.GPM_METRIC_PCIE_RX_PER_SEC, &a.PCIeReceivedBytes, bytes},
	}
	request := nvml.GpmMetricsGetType{NumMetrics: uint32(len(wanted)), Sample1: before, Sample2: after}
	for n, w := range wanted {
		request.Metrics[n].MetricId = uint32(w.id)
	}
	if lib.GpmMetricsGet(&request) != nvml.SUCCESS {
		return a
	}
	for n, w := range wanted {
		if m := request.Metrics[n]; m.NvmlReturn == uint32(nvml.SUCCESS) && m.Value >= 0 && !math.IsNaN(m.Value) {
			*w.value = w.in(m.Value)
		}
	}
	return a
}
