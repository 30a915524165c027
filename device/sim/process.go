package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

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

func (g *gpu) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	if g.machine.hardware.get(g.uuid).MIG {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	var samples []nvml.ProcessUtilizationSample
	for _, p := range g.present() {
		samples = append(samples, nvml.ProcessUtilizationSample{Pid: p.PID, SmUtil: p.Percent, TimeStamp: 1})
	}
	if len(samples) == 0 {
		return nil, nvml.ERROR_NOT_FOUND
	}
	return answer(g, "GetProcessUtilization", samples)
}
