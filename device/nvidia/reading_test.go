// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"encoding/binary"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// talkative is a library with one device, of which NVML tells everything, and nothing
// twice.
func talkative() (*mock.Interface, *mock.Device) {
	const mib = 1 << 20
	clocks := map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1200, nvml.CLOCK_MEM: 1300}
	fields := map[uint32]uint64{nvml.FI_DEV_MEMORY_TEMP: 88, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX: 7 << 32, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 9}
	d := sim.Unsupported(&mock.Device{
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 81559*mib + mib - 1, Used: 10503*mib + mib - 1}, nvml.SUCCESS
		},
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Reserved: 502*mib + 1}, nvml.SUCCESS // of which a page is a part of the next MiB
		},
		GetBAR1MemoryInfoFunc: func() (nvml.BAR1Memory, nvml.Return) {
			return nvml.BAR1Memory{Bar1Used: 2 * mib, Bar1Total: 5 * mib}, nvml.SUCCESS
		},
		GetPowerUsageFunc:             func() (uint32, nvml.Return) { return 301999, nvml.SUCCESS },
		GetEnforcedPowerLimitFunc:     func() (uint32, nvml.Return) { return 700000, nvml.SUCCESS },
		GetTemperatureFunc:            func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 67, nvml.SUCCESS },
		GetTotalEnergyConsumptionFunc: func() (uint64, nvml.Return) { return 1 << 40, nvml.SUCCESS },
		GetUtilizationRatesFunc:       func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 3, Memory: 4}, nvml.SUCCESS },
		GetEncoderUtilizationFunc:     func() (uint32, uint32, nvml.Return) { return 5, 100, nvml.SUCCESS },
		GetDecoderUtilizationFunc:     func() (uint32, uint32, nvml.Return) { return 6, 100, nvml.SUCCESS },
		GetClockInfoFunc:              func(kind nvml.ClockType) (uint32, nvml.Return) { return clocks[kind], nvml.SUCCESS },
		GetDetailedEccErrorsFunc: func(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (nvml.EccErrorCounts, nvml.Return) {
			if kind != nvml.MEMORY_ERROR_TYPE_UNCORRECTED || counter != nvml.VOLATILE_ECC {
				return nvml.EccErrorCounts{}, nvml.ERROR_INVALID_ARGUMENT
			}
			return nvml.EccErrorCounts{L1Cache: 15, L2Cache: 16, DeviceMemory: 17}, nvml.SUCCESS
		},
		GetPcieReplayCounterFunc: func() (int, nvml.Return) { return 20, nvml.SUCCESS },
		GetRemappedRowsFunc:      func() (int, int, bool, bool, nvml.Return) { return 21, 22, false, true, nvml.SUCCESS },
		GetCurrentClocksEventReasonsFunc: func() (uint64, nvml.Return) {
			return uint64(nvml.ClocksEventReasonSwThermalSlowdown), nvml.SUCCESS
		},
		GetGridLicensableFeaturesFunc: func() (nvml.GridLicensableFeatures, nvml.Return) {
			f := nvml.GridLicensableFeatures{IsGridLicenseSupported: 1, LicensableFeaturesCount: 2}
			f.GridLicensableFeatures[1].FeatureState = 1
			return f, nvml.SUCCESS
		},
		GetFieldValuesFunc: func(values []nvml.FieldValue) nvml.Return {
			for n, v := range values {
				if v.FieldId != nvml.FI_DEV_MEMORY_TEMP && v.ScopeId != ^uint32(0) {
					values[n].NvmlReturn = uint32(nvml.ERROR_INVALID_ARGUMENT) // of one link
					continue
				}
				values[n].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
				binary.NativeEndian.PutUint64(values[n].Value[:], fields[v.FieldId])
			}
			return nvml.SUCCESS
		},
	})
	lib := sim.Unsupported(&mock.Interface{
		InitFunc:                  func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:              func() nvml.Return { return nvml.SUCCESS },
		ExtensionsFunc:            func() nvml.ExtendedInterface { return nil },
		DeviceGetHandleByUUIDFunc: func(string) (nvml.Device, nvml.Return) { return d, nvml.SUCCESS },
	})
	return lib, d
}

// Each value of a reading is what NVML says of just that, in the reading's unit.
func TestReadingIsWhatNVMLSays(t *testing.T) {
	lib, _ := talkative()
	b := nvidia.New(lib, forever)
	defer b.Close()
	want := hardware.Reading{
		PowerWatts: 301, PowerLimitWatts: 700, GPUPercent: 3, MemoryPercent: 4, EncoderPercent: 5, DecoderPercent: 6, TemperatureC: 67,
		MemoryUsedMiB: 10503, MemoryTotalMiB: 81559, BAR1UsedMiB: 2, BAR1TotalMiB: 5, SMClockMHz: 1200, MemoryClockMHz: 1300, EnergyMilliJoules: 1 << 40,
		ECCL1: 15, ECCL2: 16, ECCMemory: 17, MemoryTemperatureC: 88, MemoryReservedMiB: 503, PCIeReplays: 20, RowsCorrectable: 21, RowsUncorrectable: 22,
		RowRemapFailed: 1, ClockReasons: int64(nvml.ClocksEventReasonSwThermalSlowdown), NVLinkKiB: 7<<32 + 9, VGPULicensed: 1,
		Activity: hardware.NoActivity(),
	}
	got, err := b.Reading("GPU-1", "GPU-1")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v; the reading differs (-want +got):\n%s", err, diff)
	}
}

// What NVML does not tell is absent, whatever the value beside the error is.
func TestReadingLeavesOutWhatNVMLDoesNotTell(t *testing.T) {
	lib, d := talkative()
	b := nvidia.New(lib, forever)
	defer b.Close()
	const unsupported = nvml.ERROR_NOT_SUPPORTED
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 1 << 30}, nvml.ERROR_UNKNOWN }
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{Reserved: 1 << 30}, unsupported }
	d.GetBAR1MemoryInfoFunc = func() (nvml.BAR1Memory, nvml.Return) { return nvml.BAR1Memory{Bar1Total: 1 << 30}, unsupported }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 1, unsupported }
	d.GetEnforcedPowerLimitFunc = d.GetPowerUsageFunc
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 1, unsupported }
	d.GetTotalEnergyConsumptionFunc = func() (uint64, nvml.Return) { return 1, unsupported }
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 1}, unsupported }
	d.GetEncoderUtilizationFunc = func() (uint32, uint32, nvml.Return) { return 1, 1, unsupported }
	d.GetDecoderUtilizationFunc = d.GetEncoderUtilizationFunc
	d.GetClockInfoFunc = func(nvml.ClockType) (uint32, nvml.Return) { return 1, unsupported }
	d.GetDetailedEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (nvml.EccErrorCounts, nvml.Return) {
		return nvml.EccErrorCounts{L1Cache: 1}, unsupported
	}
	d.GetPcieReplayCounterFunc = func() (int, nvml.Return) { return 1, unsupported }
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 1, true, true, unsupported }
	d.GetCurrentClocksEventReasonsFunc = d.GetTotalEnergyConsumptionFunc
	d.GetGridLicensableFeaturesFunc = func() (nvml.GridLicensableFeatures, nvml.Return) { return nvml.GridLicensableFeatures{}, unsupported }
	fields := d.GetFieldValuesFunc
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return { _ = fields(values); return unsupported }
	if got, err := b.Reading("GPU-1", "GPU-1"); err != nil || got != hardware.NoReading() {
		t.Errorf("%v; of a silent device is read:\n%s", err, cmp.Diff(hardware.NoReading(), got))
	}
	// One link field alone is not the traffic of both ways, and a heat sensor may be
	// missing by itself.
	for _, missing := range []uint32{nvml.FI_DEV_MEMORY_TEMP, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX} {
		d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
			ret := fields(values)
			for n := range values {
				if values[n].FieldId == missing {
					values[n].NvmlReturn = uint32(unsupported)
				}
			}
			return ret
		}
		got, err := b.Reading("GPU-1", "GPU-1")
		if err != nil || (got.MemoryTemperatureC == hardware.Absent) != (missing == nvml.FI_DEV_MEMORY_TEMP) || (got.NVLinkKiB == hardware.Absent) != (missing != nvml.FI_DEV_MEMORY_TEMP) {
			t.Errorf("without field %d: %+v, %v", missing, got, err)
		}
	}
}

// A license is one that holds, of a feature that is there, on a GPU that needs one.
func TestLicenseOfAVGPU(t *testing.T) {
	lib, d := talkative()
	b := nvidia.New(lib, forever)
	defer b.Close()
	for name, tc := range map[string]struct {
		supported int32
		count     uint32
		states    [3]uint32
		want      int64
	}{
		"no vGPU":                     {0, 1, [3]uint32{1}, 0},
		"no license":                  {1, 1, [3]uint32{0}, 0},
		"a license":                   {1, 1, [3]uint32{1}, 1},
		"of the last feature":         {1, 3, [3]uint32{0, 0, 1}, 1},
		"beyond those that are there": {1, 1, [3]uint32{0, 1, 1}, 0},
		"more than there is room for": {1, 9, [3]uint32{0, 0, 0}, 0},
	} {
		d.GetGridLicensableFeaturesFunc = func() (nvml.GridLicensableFeatures, nvml.Return) {
			f := nvml.GridLicensableFeatures{IsGridLicenseSupported: tc.supported, LicensableFeaturesCount: tc.count}
			for n, state := range tc.states {
				f.GridLicensableFeatures[n].FeatureState = state
			}
			return f, nvml.SUCCESS
		}
		if got, err := b.Reading("GPU-1", "GPU-1"); err != nil || got.VGPULicensed != tc.want {
			t.Errorf("%s: %d, %v", name, got.VGPULicensed, err)
		}
	}
}

// Functions that NVML 13 has deprecated go one day, and a call of one that is gone ends the
// process.
func TestReadingWithoutDeprecatedFunctions(t *testing.T) {
	r := newRig(t, h100x3)
	gone := sim.Control{NoSymbols: []string{"nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetDetailedEccErrors"}}
	gone.GPUs = map[string]sim.Condition{r.uuid(0): {ECCUncorrected: 3}}
	if err := sim.WriteControl(r.dir, gone); err != nil {
		t.Fatal(err)
	}
	got, err := r.Reading(r.uuid(0), r.uuid(0))
	if err != nil || got.TemperatureC != hardware.Absent || got.ECCMemory != 3 || got.ECCL1 != 0 || got.ECCL2 != 0 {
		t.Errorf("the reading is %+v, %v", got, err)
	}
}
