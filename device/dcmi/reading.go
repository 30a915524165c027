// SPDX-License-Identifier: MPL-2.0

package dcmi

// #include "dcmi.h"
import "C"

import (
	"errors"
	"unsafe"
)

// Memory is a device's own.
type Memory struct {
	SizeMiB, UsedMiB int64
	MHz              int64
	// TemperatureC and BandwidthPercent are told of HBM; OnChip says that it is.
	TemperatureC, BandwidthPercent int64
	OnChip                         bool
}

// Memory asks for the memory: HBM, or that of processors without.
func (d Device) Memory() (Memory, error) {
	var hbm C.HBM
	err := d.fill("dcmi_get_device_hbm_info", unsafe.Pointer(&hbm))
	if err == nil && hbm.size > 0 {
		return Memory{SizeMiB: int64(hbm.size), UsedMiB: int64(min(hbm.used, hbm.size)), MHz: int64(hbm.mhz), TemperatureC: int64(hbm.temperature),
			BandwidthPercent: int64(hbm.bandwidth), OnChip: true}, nil
	}
	if err != nil && !errors.Is(err, ErrUnsupported) {
		return Memory{}, err
	}
	var ddr C.Memory
	err = d.fill("dcmi_get_device_memory_info_v3", unsafe.Pointer(&ddr))
	return Memory{SizeMiB: int64(ddr.size), UsedMiB: int64(ddr.size - min(ddr.available, ddr.size)), MHz: int64(ddr.mhz)}, err
}

// What a device's use is told of, and its clocks, by DCMI's numbers.
const (
	UseAICore       = 2
	UseHBMBandwidth = 10
	ClockHBM        = 6
	ClockAICore     = 7
	ClockAICoreMost = 9
)

// Use is how busy a part of the device is, in percent.
func (d Device) Use(part int) (int64, error) {
	var percent C.uint
	err := d.fillOf("dcmi_get_device_utilization_rate", part, unsafe.Pointer(&percent))
	return int64(percent), err
}

// ClockMHz is one of the device's clocks.
func (d Device) ClockMHz(which int) (int64, error) {
	var mhz C.uint
	err := d.fillOf("dcmi_get_device_frequency", which, unsafe.Pointer(&mhz))
	return int64(mhz), err
}

// TemperatureC is the processor's.
func (d Device) TemperatureC() (int64, error) {
	var degrees C.int
	err := d.fill("dcmi_get_device_temperature", unsafe.Pointer(&degrees))
	return int64(degrees), err
}

// PowerDeciwatts is what the processor draws, in tenths of a watt.
func (d Device) PowerDeciwatts() (int64, error) {
	var power C.int
	err := d.fill("dcmi_get_device_power_info", unsafe.Pointer(&power))
	return int64(power), err
}

// eccHBM is the memory that errors are counted of.
const eccHBM = 2

// UncorrectedErrors counts those of the memory since the driver was loaded.
func (d Device) UncorrectedErrors() (int64, error) {
	var e C.ECC
	err := d.fillOf("dcmi_get_device_ecc_info", eccHBM, unsafe.Pointer(&e))
	return int64(e.dual), err
}

// Process is a program on a device, by its number on the host.
type Process struct {
	PID   int
	Bytes int64
}

// mostProcesses is how many DCMI writes, into a list whose length it is not told.
const mostProcesses = 32

// Processes lists the programs on a device.
func (d Device) Processes() ([]Process, error) {
	var list [mostProcesses]C.Process
	count := C.int(mostProcesses)
	err := d.library.call("dcmi_get_device_resource_info", func(s unsafe.Pointer) C.int {
		return C.callIIPP(s, C.int(d.Card), C.int(d.Number), unsafe.Pointer(&list), unsafe.Pointer(&count))
	})
	if err != nil {
		return nil, err
	}
	var all []Process
	for _, p := range list[:min(max(count, 0), mostProcesses)] {
		all = append(all, Process{PID: int(p.pid), Bytes: int64(p.bytes)})
	}
	return all, nil
}
