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
	return answer(g, "GetComputeRunningProcesses", g.processes("", false))
}

func (g *gpu) GetMPSComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	g.machine.call("nvmlDeviceGetMPSComputeRunningProcesses")
	return answer(g, "GetMPSComputeRunningProcesses", g.processes("", true))
}

func (g *gpu) GetGraphicsRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return answer(g, "GetGraphicsRunningProcesses", []nvml.ProcessInfo(nil))
}

// processes lists those on the GPU, or on one MIG instance of it: the clients of
// MPS only, or all, since a client has a context as any other.
func (g *gpu) processes(instance string, clients bool) []nvml.ProcessInfo {
	var found []nvml.ProcessInfo
	for _, p := range g.present() {
		if (p.MPS || !clients) && p.Instance == instance {
			found = append(found, nvml.ProcessInfo{Pid: p.PID, UsedGpuMemory: p.MemoryMiB << 20})
		}
	}
	return found
}

// sampled is for how long the driver keeps samples of what processes did.
const sampled = time.Minute

// useBuffer holds the latest sample of each process, as the driver does: only of those that
// did something, and also of those that have ended meanwhile.
type useBuffer struct {
	mu      sync.Mutex
	samples map[uint32]nvml.ProcessUtilizationSample
}

// since takes a sample of the processes, and returns all that are younger than a time stamp.
func (b *useBuffer) since(seen uint64, now time.Time, present []Process) []nvml.ProcessUtilizationSample {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.samples == nil {
		b.samples = map[uint32]nvml.ProcessUtilizationSample{}
	}
	for _, p := range present {
		if p.Percent > 0 {
			b.samples[p.PID] = nvml.ProcessUtilizationSample{Pid: p.PID, SmUtil: p.Percent, TimeStamp: uint64(now.UnixMicro())}
		}
	}
	maps.DeleteFunc(b.samples, func(_ uint32, s nvml.ProcessUtilizationSample) bool {
		return s.TimeStamp < uint64(now.Add(-sampled).UnixMicro())
	})
	found := slices.SortedFunc(maps.Values(b.samples), func(a, b nvml.ProcessUtilizationSample) int { return cmp.Compare(a.Pid, b.Pid) })
	return slices.DeleteFunc(found, func(s nvml.ProcessUtilizationSample) bool { return s.TimeStamp <= seen })
}

// GetProcessUtilization returns the samples that are younger than one seen before; 0 is all
// of the buffer.
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
