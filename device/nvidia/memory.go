// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"bufio"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// memoryOf is a GPU's memory and what of it no program can have. A GPU whose
// memory is the host's (GB10 and its like) tells of none: its size is then the
// host's, and the system keeps a part of that for itself.
func (b *Backend) memoryOf(d nvml.Device, g *hardware.GPU) nvml.Return {
	memory, ret := d.GetMemoryInfo()
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		total, err := b.hostMemory()
		if err != nil {
			return ret
		}
		g.Unified, g.MemoryMiB, g.ReservedMiB = true, total, unifiedReserve(total)
	case ret != nvml.SUCCESS:
		return ret
	default:
		g.MemoryMiB, g.ReservedMiB = int64(memory.Total>>20), b.reservedMiB(d)
	}
	return nvml.SUCCESS
}

// reservedMiB is what the driver keeps of a GPU's memory; 0 where it does not tell.
func (b *Backend) reservedMiB(d nvml.Device) int64 {
	if !b.has(symbolMemoryV2) {
		return 0
	}
	memory, ret := d.GetMemoryInfo_v2()
	if ret != nvml.SUCCESS {
		return 0
	}
	return int64((memory.Reserved + 1<<20 - 1) >> 20)
}

// unifiedReserve is what the system keeps of a memory that it shares with its GPU: 17 %, and
// 4 GiB at least. On a GB10 that just started, CUDA finds 101 of 121.7 GiB free.
func unifiedReserve(totalMiB int64) int64 { return max(4096, totalMiB*17/100) }

// hostMemoryMiB reads the machine's memory.
func hostMemoryMiB() (int64, error) {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the host's memory: %w", err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var kib int64
		if n, err := fmt.Sscanf(lines.Text(), "MemTotal: %d kB", &kib); n == 1 && err == nil {
			return kib >> 10, nil
		}
	}
	return 0, fmt.Errorf("read the host's memory: /proc/meminfo has no MemTotal")
}

// readMemory measures a device's memory. Of unified memory what the GPU's programs
// hold is used: the rest of the host is not the GPU's.
func (b *Backend) readMemory(d nvml.Device, r *hardware.Reading) {
	m, ret := d.GetMemoryInfo()
	if ret == nvml.SUCCESS {
		r.MemoryUsedMiB, r.MemoryTotalMiB = int64(m.Used>>20), int64(m.Total>>20)
		return
	}
	processes, listed := d.GetComputeRunningProcesses()
	total, err := b.hostMemory()
	if ret != nvml.ERROR_NOT_SUPPORTED || listed != nvml.SUCCESS || err != nil {
		return
	}
	r.MemoryUsedMiB, r.MemoryTotalMiB = 0, total
	for _, p := range processes {
		if p.UsedGpuMemory != unknownMemory {
			r.MemoryUsedMiB += int64(p.UsedGpuMemory >> 20)
		}
	}
}
