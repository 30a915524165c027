// SPDX-License-Identifier: MPL-2.0

package telemetry

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
)

// exporter is how a vendor's own exporter tells of readings.
type exporter struct {
	gauges []gauge
	// own are the values of the labels that it adds to ours; nil for none.
	own func(*plan.Unit, hardware.Driver) []string
}

// nvidiaVendor is the vendor whose driver tells of XIDs.
const nvidiaVendor = "nvidia"

var exporters = map[string]exporter{
	nvidiaVendor: {gauges: dcgmMetrics, own: func(_ *plan.Unit, d hardware.Driver) []string { return []string{d.Version} }},
	"amd":        {gauges: amdMetrics},
	"intel":      {gauges: intelMetrics},
	"huawei":     {gauges: npuMetrics, own: npuLabelValues},
}

// labels are a device's with those that the exporter adds.
func (e exporter) labels(device []string, u *plan.Unit, d hardware.Driver) []string {
	if e.own == nil {
		return device
	}
	return append(device[:len(device):len(device)], e.own(u, d)...)
}

// gauge is one metric of a reading: a value in units of one.
type gauge struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	one   float64
	value func(hardware.Reading) int64
}

// plainGauge has our labels alone.
func plainGauge(name, help string, value func(hardware.Reading) int64) gauge {
	return gauge{prometheus.NewDesc(name, help, deviceLabels, nil), prometheus.GaugeValue, 1, value}
}

// dcgmLabels are those of dcgm-exporter: it adds the driver's version.
var dcgmLabels = append(deviceLabels[:len(deviceLabels):len(deviceLabels)], "DCGM_FI_DRIVER_VERSION")

func dcgmGauge(name, help string, value func(hardware.Reading) int64) gauge {
	return gauge{prometheus.NewDesc(name, help, dcgmLabels, nil), prometheus.GaugeValue, 1, value}
}

func dcgmCounter(name, help string, value func(hardware.Reading) int64) gauge {
	return gauge{prometheus.NewDesc(name, help, dcgmLabels, nil), prometheus.CounterValue, 1, value}
}

// dcgmRatio is a gauge of thousandths.
func dcgmRatio(name, help string, value func(hardware.Reading) int64) gauge {
	return gauge{prometheus.NewDesc(name, help, dcgmLabels, nil), prometheus.GaugeValue, 1000, value}
}

// descXID is of no reading: the driver tells of XIDs when they happen.
var descXID = prometheus.NewDesc("DCGM_FI_DEV_XID_ERRORS", "Value of the last XID error encountered.", dcgmLabels, nil)

// dcgmMetrics carry the names and units of dcgm-exporter.
var dcgmMetrics = []gauge{
	dcgmGauge("DCGM_FI_DEV_SM_CLOCK", "SM clock frequency (in MHz).", func(r hardware.Reading) int64 { return r.SMClockMHz }),
	dcgmGauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock frequency (in MHz).", func(r hardware.Reading) int64 { return r.MemoryClockMHz }),
	dcgmGauge("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", func(r hardware.Reading) int64 { return r.TemperatureC }),
	dcgmGauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", func(r hardware.Reading) int64 { return r.PowerWatts }),
	dcgmGauge("DCGM_FI_DEV_GPU_UTIL", "GPU utilization (in %).", func(r hardware.Reading) int64 { return r.GPUPercent }),
	dcgmGauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Memory utilization (in %).", func(r hardware.Reading) int64 { return r.MemoryPercent }),
	dcgmGauge("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (in %).", func(r hardware.Reading) int64 { return r.EncoderPercent }),
	dcgmGauge("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (in %).", func(r hardware.Reading) int64 { return r.DecoderPercent }),
	dcgmGauge("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", usedMiB),
	dcgmGauge("DCGM_FI_DEV_FB_FREE", "Framebuffer memory free (in MiB).", freeMiB),
	dcgmGauge("DCGM_FI_DEV_FB_TOTAL", "Framebuffer memory total (in MiB).", func(r hardware.Reading) int64 { return r.MemoryTotalMiB }),
	dcgmCounter("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "Total energy consumption since boot (in mJ).", func(r hardware.Reading) int64 { return r.EnergyMilliJoules }),
	dcgmGauge("DCGM_FI_DEV_MEMORY_TEMP", "Memory temperature (in C).", func(r hardware.Reading) int64 { return r.MemoryTemperatureC }),
	dcgmGauge("DCGM_FI_DEV_FB_RESERVED", "Framebuffer memory reserved (in MiB).", func(r hardware.Reading) int64 { return r.MemoryReservedMiB }),
	dcgmGauge("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "Bits of why the clocks are not higher.", func(r hardware.Reading) int64 { return r.ClockReasons }),
	dcgmCounter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "Total number of PCIe retries.", func(r hardware.Reading) int64 { return r.PCIeReplays }),
	dcgmCounter("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for correctable errors.", func(r hardware.Reading) int64 { return r.RowsCorrectable }),
	dcgmCounter("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "Number of remapped rows for uncorrectable errors.", func(r hardware.Reading) int64 { return r.RowsUncorrectable }),
	dcgmGauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed.", func(r hardware.Reading) int64 { return r.RowRemapFailed }),
	dcgmCounter("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "Total number of double-bit volatile ECC errors.", func(r hardware.Reading) int64 { return r.ECCMemory }),
	dcgmCounter("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "Data that all NVLinks have carried, both ways (in KiB).", func(r hardware.Reading) int64 { return r.NVLinkKiB }),
	dcgmGauge("DCGM_FI_PROF_PCIE_TX_BYTES", "PCIe traffic sent (in bytes per second).", func(r hardware.Reading) int64 { return r.PCIeSentBytes }),
	dcgmGauge("DCGM_FI_PROF_PCIE_RX_BYTES", "PCIe traffic received (in bytes per second).", func(r hardware.Reading) int64 { return r.PCIeReceivedBytes }),
	dcgmGauge("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "Whether the license of the vGPU holds.", func(r hardware.Reading) int64 { return r.VGPULicensed }),
	dcgmRatio("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Ratio of time the graphics engine is active.", func(r hardware.Reading) int64 { return r.GraphicsMilli }),
	dcgmRatio("DCGM_FI_PROF_SM_ACTIVE", "Ratio of the multiprocessors that have work.", func(r hardware.Reading) int64 { return r.SMMilli }),
	dcgmRatio("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor cores are active.", func(r hardware.Reading) int64 { return r.TensorMilli }),
	dcgmRatio("DCGM_FI_PROF_DRAM_ACTIVE", "Ratio of the memory's bandwidth in use.", func(r hardware.Reading) int64 { return r.DRAMMilli }),
}

// usedMiB is what programs use: NVML counts what the driver keeps as used too, and DCGM
// tells that apart.
func usedMiB(r hardware.Reading) int64 {
	if r.MemoryUsedMiB == hardware.Absent || r.MemoryReservedMiB == hardware.Absent {
		return r.MemoryUsedMiB
	}
	return max(0, r.MemoryUsedMiB-r.MemoryReservedMiB)
}

func freeMiB(r hardware.Reading) int64 {
	if r.MemoryTotalMiB == hardware.Absent || r.MemoryUsedMiB == hardware.Absent {
		return hardware.Absent
	}
	return r.MemoryTotalMiB - r.MemoryUsedMiB
}

// amdMetrics carry the names and units of AMD's device-metrics-exporter.
var amdMetrics = []gauge{
	plainGauge("gpu_package_power", "Current socket power in Watts", func(r hardware.Reading) int64 { return r.PowerWatts }),
	plainGauge("gpu_junction_temperature", "Current junction/hotspot temperature in Celsius", func(r hardware.Reading) int64 { return r.TemperatureC }),
	plainGauge("gpu_memory_temperature", "Current memory temperature in Celsius", func(r hardware.Reading) int64 { return r.MemoryTemperatureC }),
	plainGauge("gpu_gfx_activity", "Graphics engine usage in Percentage (0-100)", func(r hardware.Reading) int64 { return r.GPUPercent }),
	plainGauge("gpu_umc_activity", "Memory engine usage in Percentage (0-100)", func(r hardware.Reading) int64 { return r.MemoryPercent }),
	plainGauge("gpu_total_vram", "Total VRAM memory of the GPU (in MB)", func(r hardware.Reading) int64 { return r.MemoryTotalMiB }),
	plainGauge("gpu_used_vram", "Used VRAM memory of the GPU (in MB)", func(r hardware.Reading) int64 { return r.MemoryUsedMiB }),
	plainGauge("gpu_free_vram", "Free VRAM memory of the GPU (in MB)", freeMiB),
	plainGauge("gpu_ecc_uncorrect_umc", "Uncorrectable error count in UMC block", func(r hardware.Reading) int64 { return r.ECCMemory }),
}

// intelMetrics carry the names and units of Intel's XPU manager.
var intelMetrics = []gauge{
	plainGauge("xpum_temperature_celsius", "GPU temperature", func(r hardware.Reading) int64 { return r.TemperatureC }),
	plainGauge("xpum_power_watts", "Average GPU power", func(r hardware.Reading) int64 { return r.PowerWatts }),
	plainGauge("xpum_frequency_mhz", "Actual GPU frequency", func(r hardware.Reading) int64 { return r.SMClockMHz }),
	plainGauge("xpum_memory_used_bytes", "Used GPU memory", func(r hardware.Reading) int64 { return bytesOf(r.MemoryUsedMiB) }),
	{prometheus.NewDesc("xpum_energy_joules_total", "Total GPU energy consumption since boot", deviceLabels, nil), prometheus.CounterValue, 1000,
		func(r hardware.Reading) int64 { return r.EnergyMilliJoules }},
}

// bytesOf is an amount of memory in bytes; an absent one stays absent.
func bytesOf(mib int64) int64 {
	if mib == hardware.Absent {
		return hardware.Absent
	}
	return mib << 20
}

// npuLabels are those of Huawei's npu-exporter.
var npuLabels = append(deviceLabels[:len(deviceLabels):len(deviceLabels)], "id", "model_name", "vdie_id", "pcie_bus_info")

func npuLabelValues(u *plan.Unit, _ hardware.Driver) []string {
	return []string{strconv.Itoa(u.GPU.Minor), strings.TrimPrefix(u.GPU.Model, "Huawei Ascend "), strings.ToUpper(strings.TrimPrefix(u.GPU.UUID, "NPU-")), strings.ToUpper(u.GPU.PCIBusID)}
}

func npuGauge(name, help string, value func(hardware.Reading) int64) gauge {
	return gauge{prometheus.NewDesc(name, help, npuLabels, nil), prometheus.GaugeValue, 1, value}
}

// npuMetrics carry the names and units of Huawei's npu-exporter.
var npuMetrics = []gauge{
	npuGauge("npu_chip_info_utilization", "the ai core utilization", func(r hardware.Reading) int64 { return r.GPUPercent }),
	npuGauge("npu_chip_info_temperature", "the npu temperature", func(r hardware.Reading) int64 { return r.TemperatureC }),
	npuGauge("npu_chip_info_power", "the npu power", func(r hardware.Reading) int64 { return r.PowerWatts }),
	npuGauge("npu_chip_info_hbm_used_memory", "the npu hbm used memory", func(r hardware.Reading) int64 { return ofHBM(r, r.MemoryUsedMiB) }),
	npuGauge("npu_chip_info_hbm_total_memory", "the npu hbm total memory", func(r hardware.Reading) int64 { return ofHBM(r, r.MemoryTotalMiB) }),
	npuGauge("npu_chip_info_used_memory", "the npu used memory", func(r hardware.Reading) int64 { return ofOther(r, r.MemoryUsedMiB) }),
	npuGauge("npu_chip_info_total_memory", "the npu total memory", func(r hardware.Reading) int64 { return ofOther(r, r.MemoryTotalMiB) }),
	npuGauge("npu_chip_info_aicore_current_freq", "the npu ai core current frequency, unit is 'MHz'", func(r hardware.Reading) int64 { return r.SMClockMHz }),
}

// ofHBM and ofOther are an amount of memory that is HBM, or is not: HBM alone tells its
// temperature.
func ofHBM(r hardware.Reading, mib int64) int64 {
	if r.MemoryTemperatureC == hardware.Absent {
		return hardware.Absent
	}
	return mib
}

func ofOther(r hardware.Reading, mib int64) int64 {
	if r.MemoryTemperatureC != hardware.Absent {
		return hardware.Absent
	}
	return mib
}
