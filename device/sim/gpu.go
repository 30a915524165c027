// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpu is one simulated GPU. It holds no state of its own: all that can change is in
// the control file and in the hardware's settings.
type gpu struct {
	nvml.Device // answers ERROR_NOT_SUPPORTED
	machine     *Machine
	number      int
	uuid, bus   string
	kind        GPU
	used        useBuffer
}

func newGPU(m *Machine, number int, kind GPU) *gpu {
	return &gpu{Device: m.unsupported.device, machine: m, number: number,
		uuid: m.topology.UUID(number), bus: m.topology.PCIBusID(number), kind: kind}
}

func (g *gpu) condition() Condition { return g.machine.control.gpu(g.uuid) }

// failure is what the control file makes of a call. A call that hangs waits
// until the file lets it go.
func (g *gpu) failure(call string) nvml.Return {
	g.machine.called(call)
	if ret := g.machine.ready(); ret != nvml.SUCCESS {
		return ret
	}
	for g.hangs(call) {
		time.Sleep(g.machine.nap)
	}
	c := g.condition()
	switch {
	case c.Missing, c.Lost && call != "GetUUID" && call != "DeviceGetHandleByIndex":
		return nvml.ERROR_GPU_IS_LOST
	case c.Errors[call] != 0:
		return nvml.Return(c.Errors[call])
	case c.Errors["*"] != 0:
		return nvml.Return(c.Errors["*"])
	}
	return nvml.SUCCESS
}

func (g *gpu) hangs(call string) bool {
	hang := g.condition().Hang
	return slices.Contains(hang, call) || slices.Contains(hang, "*")
}

// answer is a value with the outcome that the control file gives the call.
func answer[T any](g *gpu, call string, value T) (T, nvml.Return) {
	if ret := g.failure(call); ret != nvml.SUCCESS {
		var zero T
		return zero, ret
	}
	return value, nvml.SUCCESS
}

func (g *gpu) GetUUID() (string, nvml.Return)     { return answer(g, "GetUUID", g.uuid) }
func (g *gpu) GetName() (string, nvml.Return)     { return answer(g, "GetName", g.kind.Name) }
func (g *gpu) GetMinorNumber() (int, nvml.Return) { return answer(g, "GetMinorNumber", g.number) }

func (g *gpu) GetIndex() (int, nvml.Return) {
	return answer(g, "GetIndex", slices.Index(g.machine.enumerated(), g))
}

func (g *gpu) GetBrand() (nvml.BrandType, nvml.Return) {
	return answer(g, "GetBrand", g.kind.Brand)
}

func (g *gpu) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return answer(g, "GetArchitecture", g.kind.Architecture)
}

func (g *gpu) GetCudaComputeCapability() (int, int, nvml.Return) {
	ret := g.failure("GetCudaComputeCapability")
	return g.kind.CudaMajor, g.kind.CudaMinor, ret
}

func (g *gpu) GetPciInfo() (nvml.PciInfo, nvml.Return) { return answer(g, "GetPciInfo", g.pci()) }

func (g *gpu) pci() nvml.PciInfo {
	info := pciInfo(g.bus)
	info.PciDeviceId, info.Bus = g.kind.PciDeviceId, uint32(0x10+g.number)
	return info
}

func pciInfo(bus string) nvml.PciInfo {
	var info nvml.PciInfo
	for i := range len(bus) {
		info.BusId[i] = int8(bus[i])
	}
	return info
}

func (g *gpu) GetVirtualizationMode() (nvml.GpuVirtualizationMode, nvml.Return) {
	mode := nvml.GPU_VIRTUALIZATION_MODE_NONE
	if g.kind.VGPU {
		mode = nvml.GPU_VIRTUALIZATION_MODE_VGPU
	}
	return answer(g, "GetVirtualizationMode", mode)
}

// GetMemoryInfo counts what the driver keeps as used. It is not supported where the
// memory is the host's.
func (g *gpu) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	if g.kind.unified {
		return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED
	}
	total := g.kind.MemoryMB << 20
	used := min((g.reservedMiB()+g.usedMiB(""))<<20, total)
	return answer(g, "GetMemoryInfo", nvml.Memory{Total: total, Used: used, Free: total - used})
}

// GetMemoryInfo_v2 tells the driver's own memory apart from used memory.
func (g *gpu) GetMemoryInfo_v2() (nvml.Memory_v2, nvml.Return) {
	g.machine.call("nvmlDeviceGetMemoryInfo_v2")
	m, ret := g.GetMemoryInfo()
	reserved := min(g.reservedMiB()<<20, m.Used)
	return nvml.Memory_v2{Version: 2, Total: m.Total, Reserved: reserved, Used: m.Used - reserved, Free: m.Free}, ret
}

// reservedMiB is what the driver keeps: more on larger GPUs, 615 MiB on an H200.
func (g *gpu) reservedMiB() uint64 { return 256 + g.kind.MemoryMB/400 }

// usedMiB is what the processes on the GPU, or on one MIG instance of it, hold.
func (g *gpu) usedMiB(instance string) uint64 {
	used := uint64(0)
	for _, p := range g.present() {
		if instance == "" || p.Instance == instance {
			used += p.MemoryMiB
		}
	}
	return used
}

func (g *gpu) GetBAR1MemoryInfo() (nvml.BAR1Memory, nvml.Return) {
	total := g.kind.bar1MiB << 20
	return answer(g, "GetBAR1MemoryInfo", nvml.BAR1Memory{Bar1Total: total, Bar1Used: 2 << 20, Bar1Free: total - 2<<20})
}

func (g *gpu) GetPowerUsage() (uint32, nvml.Return) {
	watts := g.condition().PowerWatts
	if watts == 0 {
		watts = g.kind.powerWatts / 8
	}
	return answer(g, "GetPowerUsage", watts*1000)
}

func (g *gpu) GetEnforcedPowerLimit() (uint32, nvml.Return) {
	return answer(g, "GetEnforcedPowerLimit", g.kind.powerWatts*1000)
}

func (g *gpu) GetMaxClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return answer(g, "GetMaxClockInfo", g.clock(kind))
}

func (g *gpu) GetClockInfo(kind nvml.ClockType) (uint32, nvml.Return) {
	return answer(g, "GetClockInfo", g.clock(kind))
}

func (g *gpu) clock(kind nvml.ClockType) uint32 {
	if kind == nvml.CLOCK_MEM {
		return g.kind.memoryMHz
	}
	return g.kind.coreMHz
}

func (g *gpu) GetMaxPcieLinkGeneration() (int, nvml.Return) {
	return answer(g, "GetMaxPcieLinkGeneration", g.kind.pcieGen)
}

func (g *gpu) GetMaxPcieLinkWidth() (int, nvml.Return) {
	return answer(g, "GetMaxPcieLinkWidth", 16)
}

func (g *gpu) GetDisplayMode() (nvml.EnableState, nvml.Return) {
	return answer(g, "GetDisplayMode", nvml.FEATURE_DISABLED)
}

func (g *gpu) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return answer(g, "GetPersistenceMode", nvml.FEATURE_ENABLED)
}

func (g *gpu) GetTemperature(nvml.TemperatureSensors) (uint32, nvml.Return) {
	g.machine.call("nvmlDeviceGetTemperature")
	degrees := g.condition().TemperatureC
	if degrees == 0 {
		degrees = 34
	}
	return answer(g, "GetTemperature", degrees)
}

func (g *gpu) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	if g.machine.hardware.get(g.uuid).MIG {
		return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
	}
	return answer(g, "GetUtilizationRates", nvml.Utilization{Gpu: g.busyPercent(""), Memory: g.condition().MemoryPercent})
}

// busyPercent is what the processes on the GPU, or on one MIG instance of it,
// use of its compute.
func (g *gpu) busyPercent(instance string) uint32 {
	c := g.condition()
	busy := uint32(0)
	if instance == "" {
		busy = c.GPUPercent
	}
	for _, p := range g.present() {
		if instance == "" || p.Instance == instance {
			busy += p.Percent
		}
	}
	return min(busy, 100)
}

func (g *gpu) GetEncoderUtilization() (uint32, uint32, nvml.Return) {
	return 0, 166667, g.failure("GetEncoderUtilization")
}

func (g *gpu) GetDecoderUtilization() (uint32, uint32, nvml.Return) {
	return 0, 166667, g.failure("GetDecoderUtilization")
}

func (g *gpu) GetTotalEccErrors(kind nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
	count := uint64(0)
	if kind == nvml.MEMORY_ERROR_TYPE_UNCORRECTED {
		count = g.condition().ECCUncorrected
	}
	return answer(g, "GetTotalEccErrors", count)
}

func (g *gpu) GetDetailedEccErrors(nvml.MemoryErrorType, nvml.EccCounterType) (nvml.EccErrorCounts, nvml.Return) {
	g.machine.call("nvmlDeviceGetDetailedEccErrors")
	return answer(g, "GetDetailedEccErrors", nvml.EccErrorCounts{DeviceMemory: g.condition().ECCUncorrected})
}

// GetMemoryErrorCounter counts the errors of one memory.
func (g *gpu) GetMemoryErrorCounter(_ nvml.MemoryErrorType, _ nvml.EccCounterType, at nvml.MemoryLocation) (uint64, nvml.Return) {
	switch at {
	case nvml.MEMORY_LOCATION_DEVICE_MEMORY:
		return answer(g, "GetMemoryErrorCounter", g.condition().ECCUncorrected)
	case nvml.MEMORY_LOCATION_L1_CACHE, nvml.MEMORY_LOCATION_L2_CACHE:
		return answer(g, "GetMemoryErrorCounter", uint64(0))
	}
	return 0, nvml.ERROR_NOT_SUPPORTED
}

func (g *gpu) GetRemappedRows() (int, int, bool, bool, nvml.Return) {
	c := g.condition()
	if !g.kind.rowRemapping {
		return 0, 0, false, false, nvml.ERROR_NOT_SUPPORTED
	}
	return 0, 0, c.RemapPending, c.RemapFailed, g.failure("GetRemappedRows")
}

// GetGridLicensableFeatures knows of one license, where the GPU is a vGPU.
func (g *gpu) GetGridLicensableFeatures() (nvml.GridLicensableFeatures, nvml.Return) {
	var features nvml.GridLicensableFeatures
	if g.kind.VGPU {
		features.IsGridLicenseSupported, features.LicensableFeaturesCount = 1, 1
		features.GridLicensableFeatures[0].FeatureState = 1
	}
	return answer(g, "GetGridLicensableFeatures", features)
}

func (g *gpu) GetPcieReplayCounter() (int, nvml.Return) {
	return answer(g, "GetPcieReplayCounter", 0)
}

// GetCurrentClocksEventReasons says that an idle GPU needs no higher clocks.
func (g *gpu) GetCurrentClocksEventReasons() (uint64, nvml.Return) {
	g.machine.call("nvmlDeviceGetCurrentClocksEventReasons")
	return answer(g, "GetCurrentClocksEventReasons", uint64(nvml.ClocksEventReasonGpuIdle))
}

// GetFieldValues knows the recovery action, as drivers from Hopper on do.
func (g *gpu) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	if ret := g.failure("GetFieldValues"); ret != nvml.SUCCESS {
		return ret
	}
	for i := range values {
		values[i].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
		if values[i].FieldId == nvml.FI_DEV_MEMORY_TEMP && g.kind.rowRemapping { // HBM has a sensor
			values[i].NvmlReturn, values[i].ValueType = uint32(nvml.SUCCESS), uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			binary.NativeEndian.PutUint64(values[i].Value[:], 41)
		}
		if values[i].FieldId == nvml.FI_DEV_GET_GPU_RECOVERY_ACTION && g.kind.Architecture >= nvml.DEVICE_ARCH_HOPPER {
			values[i].NvmlReturn = uint32(nvml.SUCCESS)
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			binary.NativeEndian.PutUint64(values[i].Value[:], g.condition().RecoveryAction)
		}
	}
	return nvml.SUCCESS
}

// RegisterEvents refuses types that the GPU does not know, as NVML does.
func (g *gpu) RegisterEvents(types uint64, set nvml.EventSet) nvml.Return {
	s, ok := set.(*eventSet)
	if !ok {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if ret := g.failure("RegisterEvents"); ret != nvml.SUCCESS {
		return ret
	}
	if types&^g.eventTypes() != 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	s.register(g, types)
	return nvml.SUCCESS
}

func (g *gpu) GetSupportedEventTypes() (uint64, nvml.Return) {
	return answer(g, "GetSupportedEventTypes", g.eventTypes())
}

func (g *gpu) eventTypes() uint64 {
	types := uint64(nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError)
	if len(g.kind.MIGProfiles.GpuInstanceProfiles) > 0 {
		types |= nvml.EventMigConfigChange
	}
	if g.kind.Architecture >= nvml.DEVICE_ARCH_HOPPER {
		types |= nvml.EventTypeDramRetirementEvent | nvml.EventTypeDramRetirementFailure | nvml.EventTypeNonFatalPoisonError |
			nvml.EventTypeFatalPoisonError | nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction
	}
	return types
}
