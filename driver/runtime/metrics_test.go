// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1/stats"
	statsv2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/google/go-cmp/cmp"
)

func TestMetricsOfBothVersionsMeanTheSame(t *testing.T) {
	var v1, v2 Metrics
	v1.fillV1(&stats.Metrics{
		CPU: &stats.CPUStat{
			Usage:      &stats.CPUUsage{Total: 5_000_000, User: 3_000_000, Kernel: 2_000_000},
			Throttling: &stats.Throttle{ThrottledPeriods: 4, ThrottledTime: 9_000},
		},
		Memory: &stats.MemoryStat{
			Usage: &stats.MemoryEntry{Usage: 100, Max: 200}, Swap: &stats.MemoryEntry{Usage: 130},
			TotalRSS: 60, TotalCache: 30, TotalMappedFile: 10, Kernel: &stats.MemoryEntry{Usage: 7},
		},
		Pids:             &stats.PidsStat{Current: 3},
		MemoryOomControl: &stats.MemoryOomControl{OomKill: 1},
	})
	v2.fillV2(&statsv2.Metrics{
		CPU: &statsv2.CPUStat{UsageUsec: 5000, UserUsec: 3000, SystemUsec: 2000, NrThrottled: 4, ThrottledUsec: 9},
		Memory: &statsv2.MemoryStat{
			Usage: 100, MaxUsage: 200, SwapUsage: 30, Anon: 60, File: 30, FileMapped: 10, KernelStack: 3, Slab: 4,
		},
		Pids:         &statsv2.PidsStat{Current: 3},
		MemoryEvents: &statsv2.MemoryEvents{OomKill: 1},
	})
	want := Metrics{
		CPUTotal: 5 * time.Millisecond, CPUUser: 3 * time.Millisecond, CPUSystem: 2 * time.Millisecond,
		ThrottledPeriods: 4, ThrottledTime: 9 * time.Microsecond,
		MemoryUsage: 100, MemoryMaxUsage: 200, RSS: 60, Cache: 30, MappedFile: 10, Swap: 30, Kernel: 7, Pids: 3, OOMKills: 1,
	}
	if diff := cmp.Diff(want, v1); diff != "" {
		t.Errorf("v1: %s", diff)
	}
	if diff := cmp.Diff(want, v2); diff != "" {
		t.Errorf("v2: %s", diff)
	}
}

func TestMetricsOfAnEmptyGroup(t *testing.T) {
	var m Metrics
	m.fillV1(&stats.Metrics{})
	m.fillV2(&statsv2.Metrics{})
	if diff := cmp.Diff(Metrics{}, m); diff != "" {
		t.Error(diff)
	}
}
