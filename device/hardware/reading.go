// SPDX-License-Identifier: MPL-2.0

package hardware

// Reading is what a device measures about itself at a moment. Absent values
// are -1: a reading of zero is a reading.
type Reading struct {
	PowerWatts, PowerLimitWatts int64
	// The utilizations are in percent.
	GPUPercent, MemoryPercent, EncoderPercent, DecoderPercent int64
	TemperatureC                                              int64
	MemoryUsedMiB, MemoryTotalMiB                             int64
	BAR1UsedMiB, BAR1TotalMiB                                 int64
	SMClockMHz, MemoryClockMHz                                int64
	EnergyMilliJoules                                         int64
	// Volatile uncorrected ECC errors since the driver was loaded.
	ECCL1, ECCL2, ECCMemory int64
	MemoryTemperatureC      int64
	// MemoryReservedMiB is what the driver keeps.
	MemoryReservedMiB int64
	PCIeReplays       int64
	// Rows of memory that were remapped after errors, and whether one could not be.
	RowsCorrectable, RowsUncorrectable, RowRemapFailed int64
	// ClockReasons are NVML's bits of why the clocks are not higher.
	ClockReasons int64
	// NVLinkKiB is the data that all links have carried, both ways.
	NVLinkKiB int64
	// VGPULicensed is 1 while the license of a vGPU holds, 0 without one.
	VGPULicensed int64
	Activity
}

// Activity is how busy the parts of a device were since it was read before, in
// thousandths: 1000 is the whole time, or all of the part. It is what tells of
// MIG instances, each as a device of its own.
type Activity struct {
	// GraphicsMilli is the time during which any engine worked, SMMilli the mean
	// use of the multiprocessors, TensorMilli that of their tensor cores, and
	// DRAMMilli the share of the memory's bandwidth.
	GraphicsMilli, SMMilli, TensorMilli, DRAMMilli int64
	// PCIe traffic, in bytes a second.
	PCIeSentBytes, PCIeReceivedBytes int64
}

// NoActivity is an Activity in which everything is absent.
func NoActivity() Activity {
	return Activity{GraphicsMilli: Absent, SMMilli: Absent, TensorMilli: Absent, DRAMMilli: Absent, PCIeSentBytes: Absent, PCIeReceivedBytes: Absent}
}

// Absent is the value of a reading that the device does not give.
const Absent = -1

// NoReading is a Reading in which everything is absent.
func NoReading() Reading {
	return Reading{
		PowerWatts: Absent, PowerLimitWatts: Absent,
		GPUPercent: Absent, MemoryPercent: Absent, EncoderPercent: Absent, DecoderPercent: Absent,
		TemperatureC: Absent, MemoryUsedMiB: Absent, MemoryTotalMiB: Absent,
		BAR1UsedMiB: Absent, BAR1TotalMiB: Absent, SMClockMHz: Absent, MemoryClockMHz: Absent,
		EnergyMilliJoules: Absent, ECCL1: Absent, ECCL2: Absent, ECCMemory: Absent,
		MemoryTemperatureC: Absent, MemoryReservedMiB: Absent, PCIeReplays: Absent, RowsCorrectable: Absent, RowsUncorrectable: Absent,
		RowRemapFailed: Absent, ClockReasons: Absent, NVLinkKiB: Absent, VGPULicensed: Absent,
		Activity: NoActivity(),
	}
}

// Process is a program that holds memory of a device.
type Process struct {
	// PID is the host's.
	PID int
	// MemoryMiB is its memory, Absent where the driver does not tell.
	MemoryMiB int64
	// MPS is true for a client of an MPS server. Where the driver does not tell who
	// is one, MPSUnknown is true: then MPS is false and says nothing.
	MPS, MPSUnknown bool
	// Graphics is true for a program that draws and does not compute, as a display server.
	Graphics bool
	// Milli is its use of compute, Absent where the driver does not tell.
	Milli int64
}
