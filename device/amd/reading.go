// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// Reading measures a GPU; of a partition the kernel tells its memory, and newer ones how
// busy it is. The rest is the GPU's.
func (b *Backend) Reading(_, uuid string) (hardware.Reading, error) {
	return on(b, uuid, func(s seen) hardware.Reading {
		if s.partition {
			return b.readPartition(s)
		}
		return b.readGPU(s.card)
	})
}

func (b *Backend) readPartition(s seen) hardware.Reading {
	n, r := s.card.first(), hardware.NoReading()
	table, _ := b.tree.Bytes(pciDir(n), "gpu_metrics")
	r.GPUPercent = partitionBusy(table, s.part, s.parts)
	n.memoryBytes, n.usedSize = hardware.Absent, hardware.Absent
	b.readMemory(strconv.Itoa(n.number), &n) // use has changed
	r.MemoryTotalMiB = per(n.memoryBytes, 1<<20)
	r.MemoryUsedMiB = per(n.usedSize, 1<<20)
	return r
}

func (b *Backend) readGPU(c card) hardware.Reading {
	dir := pciDir(c.first())
	r := hardware.NoReading()
	r.MemoryTotalMiB = per(b.tree.Amount(dir, "mem_info_vram_total"), 1<<20)
	r.MemoryUsedMiB = per(b.tree.Amount(dir, "mem_info_vram_used"), 1<<20)
	r.GPUPercent, r.MemoryPercent = percent(b.tree.Amount(dir, "gpu_busy_percent")), percent(b.tree.Amount(dir, "mem_busy_percent"))
	r.PCIeReplays = b.tree.Amount(dir, "pcie_replay_count")
	r.ECCMemory = b.uncorrected(dir, "umc_err_count")
	s := b.tree.Sensors(dir)
	r.TemperatureC, r.MemoryTemperatureC = s.TemperatureC, s.MemoryTemperatureC
	r.PowerWatts, r.PowerLimitWatts = per(s.PowerMicrowatts, 1e6), per(s.PowerCap, 1e6)
	r.EnergyMilliJoules = per(s.EnergyMicrojoules, 1000)
	r.SMClockMHz, r.MemoryClockMHz = per(s.CoreHz, 1e6), per(s.MemoryHz, 1e6)
	return r
}

// percent is absent for a value that cannot be a percentage.
func percent(n int64) int64 {
	if n > 100 {
		return hardware.Absent
	}
	return n
}

const kfdProcesses = "sys/class/kfd/kfd/proc"

// Processes lists the programs on a GPU or a partition: those of KFD, and those that
// draw, code video or compute through DRM alone.
func (b *Backend) Processes(_, uuid string) ([]hardware.Process, error) {
	return on(b, uuid, func(s seen) []hardware.Process {
		var found []hardware.Process
		for _, pid := range b.tree.Names(kfdProcesses) {
			if p, on := b.kfdProcess(pid, s.card); on {
				found = append(found, p)
			}
		}
		if s.partition {
			return found // DRM's handles tell the GPU only
		}
		for _, c := range b.clients.Of(s.card.first().pci()) {
			if !slices.ContainsFunc(found, func(p hardware.Process) bool { return p.PID == c.PID }) {
				found = append(found, hardware.Process{PID: c.PID, MemoryMiB: sysfs.Per(c.MemoryBytes, 1<<20), Milli: hardware.Absent})
			}
		}
		return found
	})
}

// kfdProcess reads what a process uses of the nodes of a card. Every process of KFD's
// has a file for each GPU that it may open; it is on those where it holds memory or
// has a queue.
func (b *Backend) kfdProcess(pid string, c card) (hardware.Process, bool) {
	number, err := strconv.Atoi(pid)
	if err != nil || number <= 0 {
		return hardware.Process{}, false
	}
	p := hardware.Process{PID: number, MemoryMiB: hardware.Absent, Milli: hardware.Absent}
	bytes, on := int64(hardware.Absent), false
	for _, n := range c.nodes {
		if n.gpuID == 0 {
			continue
		}
		if used := b.tree.Amount(kfdProcesses, pid, fmt.Sprintf("vram_%d", n.gpuID)); used >= 0 {
			bytes = max(0, bytes) + used
			on = on || used > 0
		}
		on = on || b.hasQueue(pid, n.gpuID)
		busy := b.tree.Amount(kfdProcesses, pid, fmt.Sprintf("stats_%d", n.gpuID), "cu_occupancy")
		if units := n.computeUnits(); busy >= 0 && units > 0 {
			p.Milli = min(1000, max(0, p.Milli)+busy*1000/int64(units)/int64(len(c.nodes)))
		}
	}
	p.MemoryMiB = per(bytes, 1<<20)
	return p, on
}

func (b *Backend) hasQueue(pid string, gpuID uint64) bool {
	return slices.ContainsFunc(b.tree.Names(kfdProcesses, pid, "queues"), func(queue string) bool {
		id, ok := b.tree.Int(kfdProcesses, pid, "queues", queue, "gpuid")
		return ok && id > 0 && uint64(id) == gpuID
	})
}
