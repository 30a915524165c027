// SPDX-License-Identifier: MPL-2.0

package telemetry

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestAttribute(t *testing.T) {
	cgroups := map[int]string{
		10: "/nomad/a", 11: "/nomad/a/child", 20: "/nomad/b", 21: "/nomad/b", 30: "/nomad/whole", 99: "/system.slice/other",
	}
	tenantOf := func(id string, mode gpu.Mode, numbers ...int) occupancy.Tenant {
		return occupancy.Tenant{Lease: gpu.Lease{ID: id, Cgroup: "/nomad/" + id}, Holding: gpu.Holding{UUID: "GPU-1", Mode: mode, Slices: numbers}}
	}
	u := &plan.Unit{UUID: "GPU-1", Sharing: config.Sharing{Mode: gpu.ModeSlice, Mechanism: gpu.SharingMPS}, Slices: 4}
	lookup := func(pid int) []cgroup.Group { return []cgroup.Group{{Path: cgroups[pid]}} }
	got := attribute(u, []occupancy.Tenant{tenantOf("a", gpu.ModeSlice, 0), tenantOf("b", gpu.ModeSlice, 1), tenantOf("c", gpu.ModeSlice, 2)}, []hardware.Process{
		{PID: 10, MemoryMiB: 100, MPS: true, Milli: 50},
		{PID: 11, MemoryMiB: 20, MPS: true, Milli: hardware.Absent},
		{PID: 20, MemoryMiB: hardware.Absent, MPS: false, Milli: hardware.Absent},
		{PID: 21, MemoryMiB: 7, MPSUnknown: true, Milli: hardware.Absent}, // not told apart is not beside
		{PID: 99, MemoryMiB: 500, MPS: false, Milli: 10},
	}, lookup)
	want := []gpu.TaskUsage{
		{LeaseID: "a", UUID: "GPU-1", MemoryMiB: 120, Milli: 50, Processes: 2},
		{LeaseID: "b", UUID: "GPU-1", MemoryMiB: 7, Milli: -1, Processes: 2, BesideMPS: []int{20}},
		{LeaseID: "c", UUID: "GPU-1", Milli: -1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("usage differs (-want +got):\n%s", diff)
	}
	// A task that has all slices runs without MPS, and rightly.
	got = attribute(u, []occupancy.Tenant{tenantOf("whole", gpu.ModeSlice, 0, 1, 2, 3)}, []hardware.Process{{PID: 30, MemoryMiB: 1}}, lookup)
	if len(got[0].BesideMPS) != 0 || got[0].Processes != 1 {
		t.Errorf("usage of a whole GPU is %+v", got)
	}
}
