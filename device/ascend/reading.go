// SPDX-License-Identifier: MPL-2.0

package ascend

import (
	"github.com/nomad-gpu/nomad-gpu/device/dcmi"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Reading measures a device, or a vNPU.
func (b *Backend) Reading(_, uuid string) (hardware.Reading, error) {
	r, err := on(b, uuid, func(s seen) hardware.Reading {
		if s.vnpu > 0 {
			return readVNPU(s)
		}
		return readDevice(s.device)
	})
	if err != nil {
		return hardware.NoReading(), err
	}
	return r, nil
}

// readVNPU measures a vNPU: of temperature and power it has none of its own.
func readVNPU(s seen) hardware.Reading {
	r := hardware.NoReading()
	if a, err := s.device.Activity(s.vnpu); err == nil && a.TotalKiB > 0 {
		r.GPUPercent = percent(a.Percent, nil)
		r.MemoryTotalMiB = a.TotalKiB >> 10
		r.MemoryUsedMiB = max(0, a.TotalKiB-a.FreeKiB) >> 10
	}
	return r
}

func readDevice(d dcmi.Device) hardware.Reading {
	r := hardware.NoReading()
	if m, err := d.Memory(); err == nil && m.SizeMiB > 0 {
		r.MemoryTotalMiB, r.MemoryUsedMiB, r.MemoryClockMHz = m.SizeMiB, m.UsedMiB, m.MHz
		if m.OnChip {
			r.MemoryTemperatureC = m.TemperatureC
		}
	}
	r.GPUPercent = percent(d.Use(dcmi.UseAICore))
	r.MemoryPercent = percent(d.Use(dcmi.UseHBMBandwidth))
	r.SMClockMHz = told(d.ClockMHz(dcmi.ClockAICore))
	r.TemperatureC = told(d.TemperatureC())
	r.ECCMemory = told(d.UncorrectedErrors())
	if power := told(d.PowerDeciwatts()); power >= 0 {
		r.PowerWatts = (power + 5) / 10
	}
	return r
}

// told is a value that the device has given, else absent.
func told(value int64, err error) int64 {
	if err != nil || value < 0 {
		return hardware.Absent
	}
	return value
}

// percent is absent for a value that cannot be a percentage.
func percent(value int64, err error) int64 {
	if value > 100 {
		return hardware.Absent
	}
	return told(value, err)
}

// Processes lists the programs on a device. Of vNPUs the driver does not tell whose they
// are.
func (b *Backend) Processes(_, uuid string) ([]hardware.Process, error) {
	type outcome struct {
		found []dcmi.Process
		err   error
	}
	o, err := on(b, uuid, func(s seen) outcome {
		if s.vnpu > 0 {
			return outcome{}
		}
		found, err := s.device.Processes()
		return outcome{found, err}
	})
	if err == nil {
		err = o.err
	}
	if err != nil {
		return nil, err
	}
	var all []hardware.Process
	for _, p := range o.found {
		all = append(all, hardware.Process{PID: p.PID, MemoryMiB: p.Bytes >> 20, Milli: hardware.Absent})
	}
	return all, nil
}
