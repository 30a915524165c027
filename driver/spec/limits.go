// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"fmt"
	"maps"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Resources is what Nomad gives a task of CPU and memory.
type Resources struct {
	CPUShares int64
	// CPUFraction is the part of the node's CPU that the task reserved, for a
	// hard limit.
	CPUFraction float64
	CPUs        int
	// CPUSet is the list of cores that the task runs on, "" for those of the
	// control group above.
	CPUSet string
	// MemoryBytes is reserved, MemoryMaxBytes the most that it may use: 0 for no
	// more than is reserved, below 0 for no limit.
	MemoryBytes    int64
	MemoryMaxBytes int64
	// SharedBytes is the size of a /dev/shm that outlives the processes which write to
	// it: the kernel stops counting their files there when their control group
	// goes, so it is taken from the task's memory.
	SharedBytes int64
	// SwapAccounting is whether the node's kernel can limit swap.
	SwapAccounting bool
}

// NetworkSysctls let programs of any user listen on every port and send pings, as
// Docker's and Kubernetes' containers do. Settings of a network of its own have no
// effect on others.
var NetworkSysctls = map[string]string{
	"net.ipv4.ip_unprivileged_port_start": "0",
	"net.ipv4.ping_group_range":           "0 2147483647",
}

// sysctl adds the author's settings to the defaults of the task's network. That of
// another task has them already, and the host's is left alone.
func (t Task) sysctl(author map[string]string) map[string]string {
	settings := map[string]string{}
	if !t.Config.UsesHostNetwork() && t.Config.Partners().Network == "" {
		maps.Copy(settings, t.NetworkSysctls)
	}
	maps.Copy(settings, author)
	return settings
}

// cpu returns the CPU part of the cgroup.
func (r Resources) cpu(c taskconfig.Config) *specs.LinuxCPU {
	cpu := &specs.LinuxCPU{Cpus: r.CPUSet, Mems: c.CPUSetMems}
	if r.CPUShares > 0 {
		// The kernel's range.
		shares := uint64(min(max(r.CPUShares, 2), 262144))
		cpu.Shares = &shares
	}
	if c.CPUHardLimit {
		period := uint64(100000)
		if c.CPUCFSPeriod > 0 {
			period = uint64(c.CPUCFSPeriod)
		}
		quota := max(int64(r.CPUFraction*float64(r.CPUs)*float64(period)), 1000)
		cpu.Period, cpu.Quota = &period, &quota
	}
	return cpu
}

// leastMemoryBytes is what a task needs beside the memory that it shares.
const leastMemoryBytes = 8 << 20

// CheckShared refuses shared memory that the task's own cannot hold.
func (r Resources) CheckShared() error {
	memory := max(r.MemoryMaxBytes, r.MemoryBytes)
	if r.SharedBytes == 0 || memory <= 0 || r.SharedBytes+leastMemoryBytes <= memory {
		return nil
	}
	return fmt.Errorf("shm_size: %d MiB that other tasks share are taken from the task's memory, which is %d MiB and must leave %d; write a smaller shm_size, or ask for more memory",
		r.SharedBytes>>20, memory>>20, leastMemoryBytes>>20)
}

// memory returns the memory part of the cgroup: a hard limit at memory_max, and
// below it the reservation that the kernel reclaims down to under pressure.
func (r Resources) memory(c taskconfig.Config, swap *int64) *specs.LinuxMemory {
	if r.MemoryMaxBytes < 0 {
		return &specs.LinuxMemory{Reservation: &r.MemoryBytes}
	}
	hard := max(r.MemoryMaxBytes, r.MemoryBytes)
	if hard <= 0 {
		return nil
	}
	hard -= r.SharedBytes
	memory := &specs.LinuxMemory{Limit: &hard}
	if r.MemoryBytes < hard && r.MemoryBytes > 0 {
		memory.Reservation = &r.MemoryBytes
	}
	if r.SwapAccounting {
		// The kernel counts memory and swap together; without swap they are equal.
		total := hard
		if swap != nil {
			total += *swap
		}
		memory.Swap = &total
	}
	if c.Swappiness >= 0 {
		swappiness := uint64(c.Swappiness)
		memory.Swappiness = &swappiness
	}
	return memory
}

// pids returns the limit of processes, where there is one.
func pids(c taskconfig.Config, policy taskconfig.Policy) *specs.LinuxPids {
	limit := c.PidsLimit
	if limit == 0 {
		limit = policy.PidsLimit
	}
	if limit <= 0 {
		return nil
	}
	return &specs.LinuxPids{Limit: &limit}
}
