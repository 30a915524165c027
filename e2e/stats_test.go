// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// What "nomad alloc status -stats" prints comes from Nomad's statistics of the
// allocation: the driver's of CPU and memory, the device plugin's of the GPU.
func TestStatisticsOfATaskShowItsGPU(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: sliced})
	alloc := run(t, ctx, c, jobSpec{id: "busy", devices: slicesOf(4)})
	report(t, ctx, c, alloc)
	pid, err := c.Nodes[0].WaitPID(ctx, 0, "gpuprobe")
	if err != nil {
		t.Fatal(err)
	}
	if pid, err = pidInMachine(pid); err != nil {
		t.Fatal(err)
	}
	err = sim.Update(c.Nodes[0].SimDir(), onlyGPU(t, c, alloc), func(c *sim.Condition) {
		c.Processes = []sim.Process{{PID: uint32(pid), MemoryMiB: 1234, Percent: 17, MPS: true}}
	})
	if err != nil {
		t.Fatal(err)
	}
	stats := waitStats(t, ctx, c, alloc, "Task compute", 170)
	if got := stats["Task memory"]; got == nil || *got.IntNumeratorVal != 1234 || *got.IntDenominatorVal != 4096 || got.Unit != "MiB" {
		t.Errorf("GPU memory of the task is %+v", got)
	}
	if got := stats["Task"]; got == nil || !strings.HasPrefix(*got.StringVal, "busy/task") {
		t.Errorf("the statistics are those of %+v", got)
	}
}

// pidInMachine translates a PID of the host into one of the machine below it.
func pidInMachine(pid int) (int, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, line, _ := strings.Cut(string(status), "\nNSpid:")
	line, _, _ = strings.Cut(line, "\n")
	numbers := strings.Fields(line) // the host's, the machine's, and a container's
	if len(numbers) < 2 {
		return 0, fmt.Errorf("process %d is in no machine: NSpid is %q", pid, line)
	}
	return strconv.Atoi(numbers[1])
}

// waitStats returns the device statistics of an allocation's task, of the instance
// where one has the wanted value, once there are CPU and memory as well.
func waitStats(t *testing.T, ctx context.Context, c *cluster.Cluster, alloc *api.Allocation, name string, wanted int64) map[string]*api.StatValue {
	t.Helper()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		usage, err := c.API.Allocations().Stats(alloc, (&api.QueryOptions{}).WithContext(ctx))
		if err == nil && usage.Tasks["task"] != nil && usesMemory(usage.Tasks["task"].ResourceUsage.MemoryStats) {
			for _, group := range usage.Tasks["task"].ResourceUsage.DeviceStats {
				for _, instance := range group.InstanceStats {
					if got := instance.Stats.Attributes[name]; got != nil && got.IntNumeratorVal != nil && *got.IntNumeratorVal == wanted {
						return instance.Stats.Attributes
					}
				}
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("no statistics show %q as %d: %v", name, wanted, err)
		}
	}
}

// usesMemory takes either measure: not every driver tells both.
func usesMemory(m *api.MemoryStats) bool { return m.Usage > 0 || m.RSS > 0 }
