// SPDX-License-Identifier: MPL-2.0

package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// gpmSample is what a GPU, or one MIG instance of it, was doing at a moment.
type gpmSample struct {
	nvml.GpmSample
	gpu     *gpu
	percent float64
}

// GpmSampleAlloc makes an empty sample.
func (m *Machine) GpmSampleAlloc() (nvml.GpmSample, nvml.Return) {
	return &gpmSample{GpmSample: m.unsupported.sample}, m.ready()
}

// GpmMetricsGet is the mean of two samples. There is no model of the parts of a
// GPU: all are as busy as the whole.
func (m *Machine) GpmMetricsGet(request *nvml.GpmMetricsGetType) nvml.Return {
	before, ok1 := request.Sample1.(*gpmSample)
	after, ok2 := request.Sample2.(*gpmSample)
	if !ok1 || !ok2 || before.gpu == nil || before.gpu != after.gpu {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if ret := after.gpu.failure("GpmMetricsGet"); ret != nvml.SUCCESS {
		return ret
	}
	for n := range request.NumMetrics {
		request.Metrics[n].NvmlReturn = uint32(nvml.SUCCESS)
		request.Metrics[n].Value = (before.percent + after.percent) / 2
	}
	return nvml.SUCCESS
}

func (s *gpmSample) Free() nvml.Return { return nvml.SUCCESS }

// GpmQueryDeviceSupport is true from Hopper on.
func (g *gpu) GpmQueryDeviceSupport() (nvml.GpmSupport, nvml.Return) {
	g.machine.call("nvmlGpmQueryDeviceSupport")
	support := nvml.GpmSupport{}
	if g.kind.Architecture >= nvml.DEVICE_ARCH_HOPPER {
		support.IsSupportedDevice = 1
	}
	return answer(g, "GpmQueryDeviceSupport", support)
}

// GpmSampleGet takes a sample of the whole GPU.
func (g *gpu) GpmSampleGet(sample nvml.GpmSample) nvml.Return {
	return g.sample("GpmSampleGet", "", sample)
}

// GpmMigSampleGet takes a sample of one GPU instance.
func (g *gpu) GpmMigSampleGet(gi int, sample nvml.GpmSample) nvml.Return {
	for _, d := range g.migDevices() {
		if d.instance.ID == gi {
			return g.sample("GpmMigSampleGet", d.uuid(), sample)
		}
	}
	return nvml.ERROR_NOT_FOUND
}

func (g *gpu) sample(call, instance string, sample nvml.GpmSample) nvml.Return {
	s, ok := sample.(*gpmSample)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	s.gpu, s.percent = g, float64(g.busyPercent(instance))
	return g.failure(call)
}
