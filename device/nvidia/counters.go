// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// readCounters reads what tells of wear and of limits.
func (b *Backend) readCounters(d nvml.Device, r *hardware.Reading) {
	if reserved := b.reservedMiB(d); reserved > 0 {
		r.MemoryReservedMiB = reserved
	}
	if n, ret := d.GetPcieReplayCounter(); ret == nvml.SUCCESS {
		r.PCIeReplays = int64(n)
	}
	if correctable, uncorrectable, _, failed, ret := d.GetRemappedRows(); ret == nvml.SUCCESS {
		r.RowsCorrectable, r.RowsUncorrectable, r.RowRemapFailed = int64(correctable), int64(uncorrectable), 0
		if failed {
			r.RowRemapFailed = 1
		}
	}
	if b.has(symbolClockReasons) {
		if reasons, ret := d.GetCurrentClocksEventReasons(); ret == nvml.SUCCESS {
			r.ClockReasons = int64(reasons)
		}
	}
	if features, ret := d.GetGridLicensableFeatures(); ret == nvml.SUCCESS {
		r.VGPULicensed = licensed(features)
	}
	// All links together have the highest number for theirs.
	const allLinks = ^uint32(0)
	fields := []nvml.FieldValue{{FieldId: nvml.FI_DEV_MEMORY_TEMP},
		{FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ScopeId: allLinks}, {FieldId: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ScopeId: allLinks}}
	if d.GetFieldValues(fields) != nvml.SUCCESS {
		return
	}
	if degrees, ok := fieldNumber(fields[0]); ok {
		r.MemoryTemperatureC = degrees
	}
	sent, ok := fieldNumber(fields[1])
	received, ok2 := fieldNumber(fields[2])
	if ok && ok2 {
		r.NVLinkKiB = sent + received
	}
}

// licensed is 1 if one of the features for which a vGPU needs a license has it.
func licensed(all nvml.GridLicensableFeatures) int64 {
	count := min(int(all.LicensableFeaturesCount), len(all.GridLicensableFeatures))
	for _, f := range all.GridLicensableFeatures[:count] {
		if all.IsGridLicenseSupported != 0 && f.FeatureState != 0 {
			return 1
		}
	}
	return 0
}

// fieldNumber reads a field that is a whole number.
func fieldNumber(f nvml.FieldValue) (int64, bool) {
	if f.NvmlReturn != uint32(nvml.SUCCESS) {
		return 0, false
	}
	switch nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return int64(binary.NativeEndian.Uint32(f.Value[:4])), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return int64(binary.NativeEndian.Uint64(f.Value[:])), true
	case nvml.VALUE_TYPE_SIGNED_INT:
		return int64(int32(binary.NativeEndian.Uint32(f.Value[:4]))), true
	default:
		return 0, false
	}
}
