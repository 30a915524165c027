// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func (g *gpu) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return answer(g, "GetComputeRunningProcesses", g.processes("", computes))
}

func (g *gpu) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	g.machine.call("nvmlDeviceGetMPSComputeRunningProcesses")
	return answer(g, "GetMPSComputeRunningProcesses", g.processes("", isClient))
}

func (g *gpu) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return answer(g, "GetGraphicsRunningProcesses", g.processes("", draws))
}

// computes is true of a program with a context for computing, as a client of MPS has one
// too.
func computes(p Process) bool { return !p.Graphics }
func isClient(p Process) bool { return p.MPS }
func draws(p Process) bool    { return p.Graphics }

// processes lists those of a kind on the GPU, or on one MIG instance of it.
func (g *gpu) processes(instance string, kind func(Process) bool) []nvml.ProcessInfo {
	var found []nvml.ProcessInfo
	for _, p := range g.present() {
		if kind(p) && p.Instance == instance {
			found = append(found, nvml.ProcessInfo{Pid: p.PID, UsedGpuMemory: p.MemoryMiB << 20})
		}
	}
	return found
}

// sampled is for how long the driver keeps samples of what processes did.
const sampled = time.Minute

// useBuffer holds when each process last did something, and how much.
type useBuffer struct {
	mu   sync.Mutex
	last map[uint32]nvml.ProcessUtilizationSample
}

// since returns a sample of each process, as the driver does: of its work since a time
// stamp, on average, so that one which is idle by now still shows its work since then,
// and one that has ended does too.
func (b *useBuffer) since(seen uint64, now time.Time, present []Process) []nvml.ProcessUtilizationSample {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil {
		b.last = map[uint32]nvml.ProcessUtilizationSample{}
	}
	stamp := uint64(now.UnixMicro())
	found := map[uint32]nvml.ProcessUtilizationSample{}
	for _, p := range present {
		sample := nvml.ProcessUtilizationSample{Pid: p.PID, SmUtil: p.Percent, TimeStamp: stamp}
		if p.Percent > 0 {
			b.last[p.PID] = sample
		}
		found[p.PID] = sample
	}
	for pid, last := range b.last {
		switch {
		case last.TimeStamp < uint64(now.Add(-sampled).UnixMicro()):
			delete(b.last, pid)
		case last.TimeStamp > seen:
			found[pid] = nvml.ProcessUtilizationSample{Pid: pid, SmUtil: last.SmUtil, TimeStamp: max(last.TimeStamp, found[pid].TimeStamp)}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b nvml.ProcessUtilizationSample) int { return cmp.Compare(a.Pid, b.Pid) })
}

// GetProcessUtilization tells what processes did since a time stamp seen before; 0 is all of
// the buffer.
func (g *gpu) GetProcessUtilization(seen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	if g.machine.hardware.get(g.uuid).MIG {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	samples := g.used.since(seen, time.Now(), g.present())
	if len(samples) == 0 {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return answer(g, "GetProcessUtilization", samples)
}
