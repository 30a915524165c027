// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Reading measures a GPU, or a MIG instance of it as far as the hardware tells;
// owner is the UUID of the physical GPU.
func (b *Backend) Reading(owner, uuid string) (hardware.Reading, error) {
	return on(b, owner, uuid, func(d nvml.Device) hardware.Reading {
		r := read(d)
		b.readTemperature(d, &r)
		b.readECC(d, &r)
		b.readMemory(d, &r)
		b.readCounters(d, &r)
		r.Activity = b.activity(d, uuid)
		return r
	})
}

func read(d nvml.Device) hardware.Reading {
	r := hardware.NoReading()
	if m, ret := d.GetBAR1MemoryInfo(); ret == nvml.SUCCESS {
		r.BAR1UsedMiB, r.BAR1TotalMiB = int64(m.Bar1Used>>20), int64(m.Bar1Total>>20)
	}
	if mw, ret := d.GetPowerUsage(); ret == nvml.SUCCESS {
		r.PowerWatts = int64(mw / 1000)
	}
	if mw, ret := d.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		r.PowerLimitWatts = int64(mw / 1000)
	}
	if mj, ret := d.GetTotalEnergyConsumption(); ret == nvml.SUCCESS {
		r.EnergyMilliJoules = int64(mj)
	}
	readUse(d, &r)
	return r
}

// readTemperature takes the call that the library has.
func (b *Backend) readTemperature(d nvml.Device, r *hardware.Reading) {
	switch {
	case b.has(symbolTemperature):
		if c, ret := d.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
			r.TemperatureC = int64(c)
		}
	case b.has(symbolTemperatureV):
		if t, ret := d.GetTemperatureV().V1(); ret == nvml.SUCCESS {
			r.TemperatureC = int64(t.Temperature)
		}
	}
}

// readECC counts uncorrected errors since the driver was loaded.
func (b *Backend) readECC(d nvml.Device, r *hardware.Reading) {
	if b.has(symbolDetailedECC) {
		if ecc, ret := d.GetDetailedEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
			r.ECCL1, r.ECCL2, r.ECCMemory = int64(ecc.L1Cache), int64(ecc.L2Cache), int64(ecc.DeviceMemory)
		}
		return
	}
	for at, value := range map[nvml.MemoryLocation]*int64{
		nvml.MEMORY_LOCATION_L1_CACHE: &r.ECCL1, nvml.MEMORY_LOCATION_L2_CACHE: &r.ECCL2, nvml.MEMORY_LOCATION_DEVICE_MEMORY: &r.ECCMemory,
	} {
		if count, ret := d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, at); ret == nvml.SUCCESS {
			*value = int64(count)
		}
	}
}

func readUse(d nvml.Device, r *hardware.Reading) {
	if u, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS {
		r.GPUPercent, r.MemoryPercent = int64(u.Gpu), int64(u.Memory)
	}
	if percent, _, ret := d.GetEncoderUtilization(); ret == nvml.SUCCESS {
		r.EncoderPercent = int64(percent)
	}
	if percent, _, ret := d.GetDecoderUtilization(); ret == nvml.SUCCESS {
		r.DecoderPercent = int64(percent)
	}
	if mhz, ret := d.GetClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		r.SMClockMHz = int64(mhz)
	}
	if mhz, ret := d.GetClockInfo(nvml.CLOCK_MEM); ret == nvml.SUCCESS {
		r.MemoryClockMHz = int64(mhz)
	}
}

// Processes lists the programs on a GPU, or on a MIG instance of it.
func (b *Backend) Processes(owner, uuid string) ([]hardware.Process, error) {
	type outcome struct {
		found []hardware.Process
		err   error
	}
	o, err := on(b, owner, uuid, func(d nvml.Device) outcome {
		found, err := b.processes(d, uuid)
		return outcome{found, err}
	})
	if err != nil {
		return nil, err
	}
	return o.found, o.err
}

func (b *Backend) processes(d nvml.Device, uuid string) ([]hardware.Process, error) {
	plain, ret := d.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil, returnError(ret)
	}
	clients, told, err := b.mpsClients(d)
	if err != nil {
		return nil, err
	}
	// Graphics is absent on data-center GPUs.
	graphics, _ := d.GetGraphicsRunningProcesses()
	busy := b.uses.of(uuid).measure(d, time.Now())
	byPID := map[int]int{}
	var found []hardware.Process
	add := func(list []nvml.ProcessInfo, mps, draws bool) {
		for _, p := range list {
			if _, seen := byPID[int(p.Pid)]; seen {
				continue
			}
			byPID[int(p.Pid)] = len(found)
			one := process(p, mps, busy)
			one.MPSUnknown, one.Graphics = !told, draws
			found = append(found, one)
		}
	}
	add(clients, true, false)
	add(plain, false, false)
	add(graphics, false, true) // and not in a list before
	return found, nil
}

// mpsClients are the clients of MPS servers. Drivers before MPS was told apart,
// and MIG instances, do not have the list: then told is false. A list that cannot
// be read this time is an error: without it every client would look like a
// program that has slipped past MPS.
func (b *Backend) mpsClients(d nvml.Device) (clients []nvml.ProcessInfo, told bool, err error) {
	if !b.has(symbolMPSProcesses) {
		return nil, false, nil
	}
	clients, ret := d.GetMPSComputeRunningProcesses()
	switch ret {
	case nvml.SUCCESS:
		return clients, true, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil, false, nil
	default:
		return nil, false, fmt.Errorf("list MPS clients: %w", returnError(ret))
	}
}

// unknownMemory is NVML's value for "not available".
const unknownMemory = ^uint64(0)

func process(p nvml.ProcessInfo, mps bool, busy map[uint32]int64) hardware.Process {
	one := hardware.Process{PID: int(p.Pid), MPS: mps, MemoryMiB: hardware.Absent, Milli: hardware.Absent}
	if p.UsedGpuMemory != unknownMemory {
		one.MemoryMiB = int64(p.UsedGpuMemory >> 20)
	}
	// A process without a sample did nothing, where the driver tells. It credits an MPS
	// server with what its clients do: nothing of a client is not known to be nothing.
	if milli := busy[p.Pid]; busy != nil && !(mps && milli == 0) {
		one.Milli = milli
	}
	return one
}
