// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/docker/go-units"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Limits are the numbers that the author wrote as text.
type Limits struct {
	ShmBytes  int64
	SwapBytes *int64
	Rlimits   []specs.POSIXRlimit
	Sysctl    map[string]string
}

// namespacedSysctls are the prefixes of kernel settings that belong to a
// container's own namespaces; any other would change the host.
var namespacedSysctls = []string{"net.", "fs.mqueue.", "kernel.msg", "kernel.sem", "kernel.shm"}

// defaultShmBytes is the size of /dev/shm where the author names none: Docker's.
const defaultShmBytes = 64 << 20

// ShmBytes is the size of the task's /dev/shm, of a config that was checked.
func (c Config) ShmBytes() int64 {
	if bytes, err := gpu.ParseBytes(c.ShmSize); err == nil {
		return bytes
	}
	return defaultShmBytes
}

// Limits reads what the author wrote as text, and notes what cannot be read.
func (c Config) Limits(m *Mistakes) Limits {
	var l Limits
	var err error
	if c.ShmSize != "" {
		l.ShmBytes, err = gpu.ParseBytes(c.ShmSize)
		m.AddErr("shm_size", err)
	}
	if c.MemorySwap != "" {
		swap, err := gpu.ParseBytesOrZero(c.MemorySwap)
		if err == nil && swap > maxBytes {
			err = fmt.Errorf("%q is not valid: it is more than any machine has", c.MemorySwap)
		}
		m.AddErr("memory_swap", err)
		l.SwapBytes = &swap
	}
	l.Rlimits = c.rlimits(m)
	l.Sysctl = merged(c.Sysctl)
	for _, key := range slices.Sorted(maps.Keys(l.Sysctl)) {
		value := l.Sysctl[key]
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
