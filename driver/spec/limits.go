// SPDX-License-Identifier: MPL-2.0

package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/docker/go-units"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
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

// limits are the numbers that the author wrote as text.
type limits struct {
	shmBytes  int64
	swapBytes *int64
	rlimits   []specs.POSIXRlimit
	sysctl    map[string]string
}

// namespacedSysctls are the prefixes of kernel settings that belong to a
// container's own namespaces; any other would change the host.
var namespacedSysctls = []string{"net.", "fs.mqueue.", "kernel.msg", "kernel.sem", "kernel.shm"}

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
	if t.Config.networkMode() != networkHost && t.Config.Partners().Network == "" {
		maps.Copy(settings, t.NetworkSysctls)
	}
	maps.Copy(settings, author)
	return settings
}

// defaultShmBytes is the size of /dev/shm where the author names none: Docker's.
const defaultShmBytes = 64 << 20

// ShmBytes is the size of the task's /dev/shm, of a config that was checked.
func (c Config) ShmBytes() int64 {
	if bytes, err := gpu.ParseBytes(c.ShmSize); err == nil {
		return bytes
	}
	return defaultShmBytes
}

// limits reads what the author wrote as text, and notes what cannot be read.
func (c Config) limits(m *Mistakes) limits {
	var l limits
	var err error
	if c.ShmSize != "" {
		l.shmBytes, err = gpu.ParseBytes(c.ShmSize)
		m.AddErr("shm_size", err)
	}
	if c.MemorySwap != "" {
		swap, err := gpu.ParseBytesOrZero(c.MemorySwap)
		if err == nil && swap > maxBytes {
			err = fmt.Errorf("%q is not valid: it is more than any machine has", c.MemorySwap)
		}
		m.AddErr("memory_swap", err)
		l.swapBytes = &swap
	}
	l.rlimits = c.rlimits(m)
	l.sysctl = merged(c.Sysctl)
	for _, key := range slices.Sorted(maps.Keys(l.sysctl)) {
		value := l.sysctl[key]
		own := slices.ContainsFunc(namespacedSysctls, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
		switch {
		case strings.Contains(key, "..") || strings.ContainsAny(key+value, "\r\n"):
			m.Add("sysctl", "%q = %q is not a setting (write one key and one line)", key, value)
		case !own:
			m.Add("sysctl", "%q is not a container's own; only %s can be set", key, strings.Join(namespacedSysctls, "*, ")+"*")
		case strings.HasPrefix(key, "net.") && c.networkMode() == networkHost:
			m.Add("sysctl", "%q would change the host's network, which the task uses", key)
		}
	}
	c.checkNumbers(m)
	return l
}

// maxBytes is more than any machine has; a larger size is a slip.
const maxBytes = 1 << 50

// maxFiles is the highest limit of open files that a kernel can be given.
const maxFiles = 1 << 30

func (c Config) checkNumbers(m *Mistakes) {
	for _, list := range []struct{ key, value, of string }{
		{"cpuset_cpus", c.CPUSetCPUs, "CPUs"}, {"cpuset_mems", c.CPUSetMems, "memory nodes"},
	} {
		if _, err := ParseCPUs(list.value); err != nil {
			m.Add(list.key, "%q is not a list of %s (write for example \"0-3,8\")", list.value, list.of)
		}
	}
	for _, n := range []struct {
		key              string
		value, low, high int64
	}{
		{"pids_limit", c.PidsLimit, -1, 1 << 22},
		{"file_limit", c.FileLimit, 0, maxFiles},
		{"cpu_cfs_period", c.CPUCFSPeriod, 0, 1000000},
		{"memory_swappiness", c.Swappiness, -1, 100},
		{"oom_score_adj", c.OOMScoreAdj, 0, 1000},
	} {
		if n.value < n.low || n.value > n.high {
			m.Add(n.key, "%d is not between %d and %d", n.value, n.low, n.high)
		}
	}
	if c.CPUCFSPeriod > 0 && c.CPUCFSPeriod < 1000 {
		m.Add("cpu_cfs_period", "%d is below the kernel's least, 1000 microseconds", c.CPUCFSPeriod)
	}
}

// rlimits reads entries such as nofile = "1024:2048", and file_limit.
func (c Config) rlimits(m *Mistakes) []specs.POSIXRlimit {
	var all []specs.POSIXRlimit
	ulimits := merged(c.Ulimit)
	for _, name := range slices.Sorted(maps.Keys(ulimits)) {
		parsed, err := units.ParseUlimit(name + "=" + ulimits[name])
		if err != nil {
			m.Add("ulimit", "%s = %q: %v", name, ulimits[name], err)
			continue
		}
		all = append(all, specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(parsed.Name), Soft: uint64(parsed.Soft), Hard: uint64(parsed.Hard)})
	}
	if c.FileLimit <= 0 {
		return all
	}
	if value, both := ulimits["nofile"]; both {
		m.Add("file_limit", "%d contradicts ulimit { nofile = %q }; remove one of them", c.FileLimit, value)
	}
	return append(all, specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Soft: uint64(c.FileLimit), Hard: uint64(c.FileLimit)})
}

// cpu returns the CPU part of the cgroup.
func (r Resources) cpu(c Config) *specs.LinuxCPU {
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
func (r Resources) memory(c Config, swap *int64) *specs.LinuxMemory {
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
func (c Config) pids(policy Policy) *specs.LinuxPids {
	limit := c.PidsLimit
	if limit == 0 {
		limit = policy.PidsLimit
	}
	if limit <= 0 {
		return nil
	}
	return &specs.LinuxPids{Limit: &limit}
}
