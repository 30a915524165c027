// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1/stats"
	statsv2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/typeurl/v2"
)

// Metrics is what a container's control group counted, on cgroup v1 or v2. What
// a kernel does not tell is 0.
type Metrics struct {
	At time.Time
	// CPUTotal, CPUUser and CPUSystem grow over the container's life.
	CPUTotal, CPUUser, CPUSystem time.Duration
	ThrottledPeriods             uint64
	ThrottledTime                time.Duration

	MemoryUsage, MemoryMaxUsage, RSS, Cache, MappedFile, Swap uint64
	Kernel, KernelMax                                         uint64
	Pids                                                      uint64
	OOMKills                                                  uint64
}

// Metrics reads the container's control group through containerd.
func (c *Container) Metrics(ctx context.Context) (Metrics, error) {
	task, err := c.task(ctx)
	if err != nil {
		return Metrics{}, err
	}
	return metricsOf(ctx, task)
}

func metricsOf(ctx context.Context, task client.Task) (Metrics, error) {
	metric, err := task.Metrics(ctx)
	if err != nil {
		return Metrics{}, fmt.Errorf("read metrics of container %s: %w", task.ID(), notFound(err))
	}
	decoded, err := typeurl.UnmarshalAny(metric.Data)
	if err != nil {
		return Metrics{}, fmt.Errorf("decode metrics of container %s: %w", task.ID(), err)
	}
	m := Metrics{At: time.Now()}
	switch data := decoded.(type) {
	case *stats.Metrics:
		m.fillV1(data)
	case *statsv2.Metrics:
		m.fillV2(data)
	default:
		return Metrics{}, fmt.Errorf("metrics of container %s are of unknown type %T", task.ID(), decoded)
	}
	return m, nil
}

func (m *Metrics) fillV1(data *stats.Metrics) {
	if cpu := data.GetCPU(); cpu != nil {
		m.CPUTotal = time.Duration(cpu.GetUsage().GetTotal())
		m.CPUUser = time.Duration(cpu.GetUsage().GetUser())
		m.CPUSystem = time.Duration(cpu.GetUsage().GetKernel())
		m.ThrottledPeriods = cpu.GetThrottling().GetThrottledPeriods()
		m.ThrottledTime = time.Duration(cpu.GetThrottling().GetThrottledTime())
	}
	if memory := data.GetMemory(); memory != nil {
		m.MemoryUsage, m.MemoryMaxUsage = memory.GetUsage().GetUsage(), memory.GetUsage().GetMax()
		m.RSS, m.Cache, m.MappedFile = memory.GetTotalRSS(), memory.GetTotalCache(), memory.GetTotalMappedFile()
		// The kernel counts memory and swap together.
		m.Swap = max(memory.GetSwap().GetUsage(), m.MemoryUsage) - m.MemoryUsage
		m.Kernel, m.KernelMax = memory.GetKernel().GetUsage(), memory.GetKernel().GetMax()
	}
	m.Pids = data.GetPids().GetCurrent()
	m.OOMKills = data.GetMemoryOomControl().GetOomKill()
}

func (m *Metrics) fillV2(data *statsv2.Metrics) {
	if cpu := data.GetCPU(); cpu != nil {
		m.CPUTotal = time.Duration(cpu.GetUsageUsec()) * time.Microsecond
		m.CPUUser = time.Duration(cpu.GetUserUsec()) * time.Microsecond
		m.CPUSystem = time.Duration(cpu.GetSystemUsec()) * time.Microsecond
		m.ThrottledPeriods = cpu.GetNrThrottled()
		m.ThrottledTime = time.Duration(cpu.GetThrottledUsec()) * time.Microsecond
	}
	if memory := data.GetMemory(); memory != nil {
		m.MemoryUsage, m.MemoryMaxUsage = memory.GetUsage(), memory.GetMaxUsage()
		m.RSS, m.Cache, m.MappedFile = memory.GetAnon(), memory.GetFile(), memory.GetFileMapped()
		m.Swap = memory.GetSwapUsage()
		m.Kernel = memory.GetKernelStack() + memory.GetSlab()
	}
	m.Pids = data.GetPids().GetCurrent()
	m.OOMKills = data.GetMemoryEvents().GetOomKill()
}

// OOMKilled asks the control group whether the kernel killed any process for
// memory. It is right even when containerd's event about it was missed, and
// until the process's record is deleted.
func (c *Container) OOMKilled(ctx context.Context) bool {
	m, err := c.Metrics(ctx)
	return err == nil && m.OOMKills != 0
}
