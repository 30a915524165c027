// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

func TestConformance_OOMKilled(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		_, result := e.run(defaultTaskConfig("tail", "/dev/zero"), func(cfg *drivers.TaskConfig) { cfg.Resources.NomadResources.Memory.MemoryMB = 32 }) // runc alone can take 16
		must.True(t, result.OOMKilled)
		must.Eq(t, 137, result.ExitCode)
		must.ErrorContains(t, result.Err, "OOM Killed")
	})
}

func TestConformance_Stats(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		cfg := e.task(defaultTaskConfig("sh", "-c", "dd if=/dev/zero of=/tmp/f bs=1M count=8 2>/dev/null; while true; do :; done"))
		e.start(cfg)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ch, err := e.harness.TaskStats(ctx, cfg.ID, 200*time.Millisecond)
		must.NoError(t, err)
		for usage := range ch {
			cpu, memory := usage.ResourceUsage.CpuStats, usage.ResourceUsage.MemoryStats
			// Percent of one CPU, of which a busy machine leaves the task a part.
			if cpu.Percent > 1 && cpu.TotalTicks > 0 && memory.Cache >= 8<<20 && memory.RSS > 0 && memory.Usage >= memory.RSS {
				// A kernel that does not know a maximum must not be said to have measured one.
				known := slices.Contains(memory.Measured, "Max Usage")
				must.Eq(t, known, memory.MaxUsage >= memory.Usage, must.Sprint(memory))

				return
			}
		}
		t.Fatal("no sample showed a busy task")
	})
}

// onGroups chooses by the version of control groups that this machine has: v1 or v2.
func onGroups(v1, v2 string) string {
	if cgroups.Unified() {
		return v2
	}
	return v1
}

// The files that hold a limit, below /sys/fs/cgroup.
var (
	fileMemory     = onGroups("memory/memory.limit_in_bytes", "memory.max")
	fileMemorySoft = onGroups("memory/memory.soft_limit_in_bytes", "memory.low")
	fileSwap       = onGroups("memory/memory.memsw.limit_in_bytes", "memory.swap.max")
	fileShares     = onGroups("cpu/cpu.shares", "cpu.weight")
	fileQuota      = onGroups("cpu/cpu.cfs_quota_us", "cpu.max")
	fileCPUs       = onGroups("cpuset/cpuset.cpus", "cpuset.cpus")
	filePIDs       = onGroups("pids/pids.max", "pids.max")
)

// groupFiles starts a task and returns what files of its own control group hold, as
// the task sees them.
func (e *env) groupFiles(config taskconfig.Config, change func(*drivers.TaskConfig), files ...string) []string {
	e.t.Helper()
	config.Command, config.Args = "sh", append([]string{"-c", `cd /sys/fs/cgroup && cat "$@"`, "sh"}, files...)
	out, result := e.run(config, change)
	must.Eq(e.t, 0, result.ExitCode, must.Sprint(out))
	return lines(out)
}

func TestCgroupNamespace(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		e = e.with(func(c *config.Config) { c.AllowPrivileged = true })
		config := defaultTaskConfig("sh", "-c", "cat /proc/self/cgroup; touch /sys/fs/cgroup/"+onGroups("memory/x", "x"))
		sees := map[string]string{
			"private": onGroups(":memory:/\n", "0::/\n"),
			"host":    onGroups(":memory:/"+testNamespace+"/web", ".scope\n"),
		}
		for mode, want := range sees {
			config.CgroupNSMode = mode
			out, result := e.run(config)
			must.StrContains(t, out, want, must.Sprint(mode))
			must.Eq(t, 1, result.ExitCode, must.Sprint("a task can write to its control group"))
		}
	})
}

func memoryMax(mib int64) func(*drivers.TaskConfig) {
	return func(cfg *drivers.TaskConfig) { cfg.Resources.NomadResources.Memory.MemoryMaxMB = mib }
}

func unchanged(*drivers.TaskConfig) {}

func TestConformance_MemoryLimits(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		must.Eq(t, []string{"268435456", "134217728"}, e.groupFiles(defaultTaskConfig(""), memoryMax(256), fileMemory, fileMemorySoft))
		must.Eq(t, []string{"134217728"}, e.groupFiles(defaultTaskConfig(""), unchanged, fileMemory))
		none := onGroups("9223372036854771712", "max")
		must.Eq(t, []string{none}, e.groupFiles(defaultTaskConfig(""), memoryMax(-1), fileMemory), must.Sprint("memory_max = -1 is no limit"))
	})
}

// On cgroup v1 memory and swap are one limit, on v2 swap has its own.
func TestConformance_Swap(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		must.Eq(t, []string{onGroups("134217728", "0")}, e.groupFiles(defaultTaskConfig(""), unchanged, fileSwap))
		config := defaultTaskConfig("")
		config.MemorySwap = "16M"
		must.Eq(t, []string{onGroups("150994944", "16777216")}, e.groupFiles(config, unchanged, fileSwap))
	})
}

func TestConformance_CPUHardLimit(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		// runc turns 100 shares into a weight of 4, and since 1.4 into one of 17.
		shares := strings.Split(onGroups("100", "4 17"), " ")
		soft := e.groupFiles(defaultTaskConfig(""), unchanged, fileShares, fileQuota)
		must.SliceContains(t, shares, soft[0])
		must.Eq(t, onGroups("-1", "max 100000"), soft[1])
		config := defaultTaskConfig("")
		config.CPUHardLimit = true
		quota := itoa(goruntime.NumCPU() * 10000) // a tenth of each
		hard := e.groupFiles(config, unchanged, fileShares, fileQuota)
		must.SliceContains(t, shares, hard[0])
		must.Eq(t, onGroups(quota, quota+" 100000"), hard[1])
	})
}

func TestConformance_Cpuset(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("")
		config.CPUSetCPUs = "0"
		must.Eq(t, []string{"0"}, e.groupFiles(config, unchanged, fileCPUs))
	})
}

func TestConformance_PidsLimit(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		operator := e.with(func(c *config.Config) { c.PidsLimit = 44 })
		must.Eq(t, []string{"44"}, operator.groupFiles(defaultTaskConfig(""), unchanged, filePIDs))
		config := defaultTaskConfig("")
		config.PidsLimit = 33
		must.Eq(t, []string{"33"}, operator.groupFiles(config, unchanged, filePIDs))
		for _, above := range []int64{45, -1} {
			config.PidsLimit = above
			_, _, err := operator.driver.StartTask(operator.quietTask(config))
			must.ErrorContains(t, err, "is above the 44 that this node's operator allows")
		}
		config.PidsLimit = -1
		must.Eq(t, []string{"max"}, e.groupFiles(config, unchanged, filePIDs))
	})
}

func TestConformance_Sysctl_Ulimit(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("sh", "-c", "ulimit -S -n; ulimit -H -n; cat /proc/sys/net/core/somaxconn /proc/self/oom_score_adj; stat -f -c %b /dev/shm; stat -f -c %S /dev/shm")
		config.Ulimit = []map[string]string{{"nofile": "2048:4096"}}
		config.Sysctl = []map[string]string{{"net.core.somaxconn": "777"}}
		config.OOMScoreAdj, config.ShmSize = 7, "8M"
		out, _ := e.run(config)
		must.Eq(t, []string{"2048", "4096", "777", "7", "2048", "4096"}, lines(out))
	})
}

// What a kernel does not count is absent, not 0.
func TestStatisticsNameWhatWasMeasured(t *testing.T) {
	old := measuredMemory(runtime.Metrics{RSS: 1, MemoryUsage: 1})
	must.SliceContains(t, old, "Usage")
	must.SliceNotContains(t, old, "Max Usage")
	must.SliceNotContains(t, old, "Kernel Max Usage")
	all := measuredMemory(runtime.Metrics{MemoryMaxUsage: 2, KernelMax: 1})
	must.SliceContains(t, all, "Max Usage")
	must.SliceContains(t, all, "Kernel Max Usage")
	must.Eq(t, cgroups.SwapAccounting(), slices.Contains(all, "Swap"))
}
