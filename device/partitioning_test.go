// SPDX-License-Identifier: MPL-2.0

package device

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// startPartitioned offers one GPU in slices with multiprocessors of their own, with the
// MPS control program of a branch.
func startPartitioned(t *testing.T, branch, model string) *rig {
	t.Helper()
	r := newRig(t)
	r.branch, r.mps = branch, "static_partitioning = true"
	topology := filepath.Join(r.dir, "machine.hcl")
	writeFile(t, topology, `machine "m" {}
gpu { model = "`+model+`" }`)
	r.start(topology, `mode = "slice"`)
	return r
}

// unhealthyBecause waits until every instance says something.
func (r *rig) unhealthyBecause(text string) []*device.DeviceGroup {
	r.t.Helper()
	return r.until("its instances say "+text, func(groups []*device.DeviceGroup) bool {
		for _, g := range groups {
			for _, d := range g.Devices {
				if d.Healthy || !strings.Contains(d.HealthDesc, text) {
					return false
				}
			}
		}
		return len(groups) > 0
	})
}

func TestEachTaskHasMultiprocessorsOfItsOwn(t *testing.T) {
	r := startPartitioned(t, "590", "H100")
	groups := r.until("all is healthy", allHealthy)
	if grade := groups[0].Attributes[gpu.AttrComputeGrade]; grade == nil || plan.AttributeText(grade) != gpu.ComputeEnforced {
		t.Errorf("the grade of compute is %v", grade)
	}
	if grade := plan.AttributeText(groups[0].Attributes[gpu.AttrGrade]); grade != string(gpu.GradeCooperative) {
		t.Errorf("partitions of multiprocessors make the grade of memory %s", grade)
	}
	state := must(r.openState().GPUs())[0]
	if p := state.MPS.Partitioning; p == nil || *p != (gpu.MPSPartitioning{Chunks: 16, Multiprocessors: 132}) {
		t.Fatalf("the driver is told of %+v", p)
	}
	path := filepath.Join(r.dir, "look.hcl")
	writeFile(t, path, r.config(filepath.Join(r.dir, "machine.hcl"), `mode = "slice"`))
	if seen, err := inventory.Take(path); err != nil || seen.Devices[0].Guarantees != 16 || seen.Devices[0].Instances != 79 {
		t.Errorf("the inventory has %+v, %v", seen, err)
	}
	// Slices are left when all chunks belong to tasks, and take no more.
	lease := func(id string, phase gpu.Phase, chunks, slice int) {
		t.Helper()
		err := r.openState().WriteLease(gpu.Lease{ID: id, Container: id, Phase: phase, Holdings: []gpu.Holding{
			{UUID: state.UUID, Mode: gpu.ModeSlice, Slices: []int{slice}, MPSGeneration: 1, Partition: &gpu.Partition{ID: id, Chunks: chunks}}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	lease("first.task", gpu.PhaseRunning, 15, 0)
	r.until("there is room", allHealthy)
	lease("second.task", gpu.PhaseStarting, 1, 1)
	r.until("the free slices are cordoned", func(groups []*device.DeviceGroup) bool {
		closed := 0
		for _, d := range groups[0].Devices {
			if !d.Healthy && strings.Contains(d.HealthDesc, "all 16 chunks of its multiprocessors belong to tasks") {
				closed++
			}
		}
		return closed == 77
	})
}

// Where it cannot be had nothing is offered, and why is said.
func TestStaticPartitioningIsRefused(t *testing.T) {
	t.Run("by the driver's branch", func(t *testing.T) {
		groups := startPartitioned(t, "555", "H100").unhealthyBecause("does not start with static partitions (-S)")
		for _, d := range groups[0].Devices {
			if !strings.Contains(d.HealthDesc, "install a driver of CUDA 13.1 or newer (branch 590)") {
				t.Fatal(d.HealthDesc)
			}
		}
		if groups[0].Attributes[gpu.AttrComputeGrade] != nil {
			t.Error("its compute has a grade")
		}
	})
	t.Run("by the GPU", func(t *testing.T) {
		startPartitioned(t, "590", "T4").unhealthyBecause(`takes a GPU of compute capability 8.0 (Ampere) or later, and this one has "7.5"`)
	})
	t.Run("of MIG instances", func(t *testing.T) {
		t.Parallel()
		u := &plan.Unit{Static: true, GPU: hardware.GPU{Vendor: "nvidia"}, Instance: &hardware.Partition{}, MemoryMiB: 1024,
			Sharing: config.Sharing{Mode: gpu.ModeSlice, Mechanism: gpu.SharingMPS}}
		if why := u.Unable(); !strings.Contains(why, "MIG instances") {
			t.Error(why)
		}
	})
}

// A change of the configuration waits for the tasks that are there.
func TestStaticPartitioningIsTurnedOnWhenNoTaskIsThere(t *testing.T) {
	r := newRig(t)
	r.branch = "590"
	topology := filepath.Join(r.dir, "machine.hcl")
	writeFile(t, topology, `machine "m" {}
gpu { model = "H100" }`)
	r.start(topology, `mode = "slice"`)
	r.until("all is healthy", allHealthy)
	state := must(r.openState().GPUs())[0]
	lease := gpu.Lease{ID: "a.task", Container: "c", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{
		{UUID: state.UUID, Mode: gpu.ModeSlice, Slices: []int{0}, MPSGeneration: state.MPS.Generation}}}
	if err := r.openState().WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	r.mps = "static_partitioning = true"
	r.start(topology, `mode = "slice"`)
	r.until("free slices wait", func(groups []*device.DeviceGroup) bool {
		d := groups[0].Devices[1]
		return !d.Healthy && strings.Contains(d.HealthDesc, "waits for its tasks to end, to give each task multiprocessors of its own")
	})
	lease.Phase = gpu.PhaseEnded
	if err := r.openState().WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	groups := r.until("it is done", func(groups []*device.DeviceGroup) bool {
		return allHealthy(groups) && groups[0].Attributes[gpu.AttrComputeGrade] != nil
	})
	if now := must(r.openState().GPUs())[0].MPS; now.Generation != state.MPS.Generation+1 || groups == nil {
		t.Errorf("the daemon is now %+v", now)
	}
}

// What the daemon's protocol is, and why, is told; limits that no program can leave make a
// grade.
func TestMPSProtocolIsTold(t *testing.T) {
	for _, tc := range []struct {
		branch, options string
		protocol        int64
		why, grade      string
	}{
		{"555", "", 2, "the control program has no protocol 3, which came with branch 615", ""},
		{"615", "", 3, "the control program has protocol 3", ""},
		{"615", "exclusive = true", 3, "the control program has protocol 3", gpu.ComputeEnforced},
		{"620", `protocol = "2"`, 2, `mps { protocol = "2" } is configured`, ""},
	} {
		t.Run(tc.branch+" "+tc.options, func(t *testing.T) {
			r := newRig(t)
			r.branch, r.mps = tc.branch, tc.options
			topology := filepath.Join(r.dir, "machine.hcl")
			writeFile(t, topology, `machine "m" {}
gpu { model = "H100" }`)
			r.start(topology, `mode = "slice"`)
			groups := r.until("all is healthy", allHealthy)
			if got := groups[0].Attributes[gpu.AttrMPSProtocol]; got == nil || *got.Int != tc.protocol {
				t.Errorf("the protocol is %+v", got)
			}
			grade := ""
			if a := groups[0].Attributes[gpu.AttrComputeGrade]; a != nil {
				grade = plan.AttributeText(a)
			}
			state := must(r.openState().GPUs())[0]
			if grade != tc.grade || state.MPS.ProtocolReason != tc.why {
				t.Errorf("the grade of compute is %q, the protocol %d because %q", grade, state.MPS.Protocol, state.MPS.ProtocolReason)
			}
		})
	}
}
