// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	goruntime "runtime"
	"slices"
	"time"

	"github.com/hashicorp/nomad/client/lib/cpustats"
	"github.com/hashicorp/nomad/client/lib/numalib/hw"
	cstructs "github.com/hashicorp/nomad/client/structs"
	"github.com/hashicorp/nomad/plugins/base"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// computeOf is the node's CPU as Nomad counts it, for ticks; without it, one
// core of 1000 ticks stands for each of the machine's.
func computeOf(c *base.Config) cpustats.Compute {
	if c.AgentConfig != nil && c.AgentConfig.Driver != nil && c.AgentConfig.Driver.Topology != nil {
		return c.AgentConfig.Driver.Topology.Compute()
	}
	cores := goruntime.NumCPU()
	return cpustats.Compute{NumCores: cores, TotalCompute: hw.MHz(1000 * cores)}
}

// TaskStats reports what a task uses, at Nomad's interval or, where Nomad names
// none, at the operator's.
func (d *Driver) TaskStats(ctx context.Context, taskID string, interval time.Duration) (<-chan *cstructs.TaskResourceUsage, error) {
	t, err := d.tasks.get(taskID)
	if err != nil {
		return nil, err
	}
	n, err := d.configured()
	if err != nil {
		return nil, err
	}
	if interval <= 0 {
		interval = n.settings.StatsEvery
	}
	ch := make(chan *cstructs.TaskResourceUsage)
	d.work.start(func() { d.statsLoop(ctx, t, interval, ch) })
	return ch, nil
}

func (d *Driver) statsLoop(ctx context.Context, t *task, interval time.Duration, ch chan<- *cstructs.TaskResourceUsage) {
	defer close(ch)
	tick := time.Tick(interval)
	d.mu.RLock()
	compute := d.compute
	d.mu.RUnlock()
	meter := usageMeter{
		total: cpustats.New(compute), user: cpustats.New(compute), system: cpustats.New(compute),
	}
	for {
		if m, err := t.container.Metrics(ctx); err == nil {
			select {
			case ch <- meter.usage(m):
			case <-ctx.Done():
				return
			case <-d.ctx.Done():
				return
			}
		} else {
			t.logger.Debug("no statistics now", "error", err)
		}
		select {
		case <-tick:
		case <-t.done:
			return
		case <-ctx.Done():
			return
		case <-d.ctx.Done():
			return
		}
	}
}

var measuredCPU = []string{"System Mode", "User Mode", "Percent", "Throttled Periods", "Throttled Time", "Total Ticks"}

// measuredMemory names what a kernel told. A maximum of nothing is none: cgroup v2
// counts one for the kernel's part nowhere, and one for all of it since Linux 5.19
// only.
func measuredMemory(m runtime.Metrics) []string {
	names := []string{"RSS", "Cache", "Mapped File", "Usage", "Kernel Usage"}
	for name, told := range map[string]bool{
		"Swap": cgroups.SwapAccounting(), "Max Usage": m.MemoryMaxUsage > 0, "Kernel Max Usage": m.KernelMax > 0,
	} {
		if told {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// usageMeter turns growing CPU times into percentages of the time between.
type usageMeter struct {
	total, user, system *cpustats.Tracker
}

func (u *usageMeter) usage(m runtime.Metrics) *cstructs.TaskResourceUsage {
	percent := u.total.Percent(float64(m.CPUTotal))
	return &cstructs.TaskResourceUsage{
		Timestamp: m.At.UnixNano(),
		ResourceUsage: &cstructs.ResourceUsage{
			CpuStats: &cstructs.CpuStats{
				UserMode: u.user.Percent(float64(m.CPUUser)), SystemMode: u.system.Percent(float64(m.CPUSystem)),
				Percent: percent, TotalTicks: u.total.TicksConsumed(percent),
				ThrottledPeriods: m.ThrottledPeriods, ThrottledTime: uint64(m.ThrottledTime),
				Measured: measuredCPU,
			},
			MemoryStats: &cstructs.MemoryStats{
				RSS: m.RSS, Cache: m.Cache, Swap: m.Swap, MappedFile: m.MappedFile,
				Usage: m.MemoryUsage, MaxUsage: m.MemoryMaxUsage, KernelUsage: m.Kernel, KernelMaxUsage: m.KernelMax,
				Measured: measuredMemory(m),
			},
		},
	}
}
