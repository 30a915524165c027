// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// unknown is a GPU that nothing was measured of.
var unknown = view.Measured{Milli: -1, MemoryMiB: -1, TemperatureC: -1, PowerW: -1}

// All that is known of a node, and nothing else.
func TestANodeInFull(t *testing.T) {
	one := func(id string) []view.Instance { return []view.Instance{{ID: id, Healthy: true}} }
	pair := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: "NVIDIA A100", Instances: instances("", "GPU-d", "GPU-c", "", "GPU-e::x"), Attributes: map[string]*api.Attribute{
		"numa_node": number(0, ""), "memory": number(40, "GiB"), "unique.closeness": word("numa:1=GPU-c;nvlink:2=GPU-c,GPU-d,GPU-x,MIG-b;nvlink:3=GPU-d,MIG-a,X-1"),
	}}
	sliced := &api.NodeDeviceResource{Vendor: "nvidia", Type: "slice", Name: "T4/0", Instances: instances("", "GPU-b::10", "GPU-b::2", "GPU-b::0"), Attributes: map[string]*api.Attribute{
		"model": word("Tesla T4"), "type": word("T4"), "memory": number(16000, "MiB"), "sharing": word("mps"), "grade": word("enforced"),
	}}
	sliced.Instances[1].Healthy, sliced.Instances[1].HealthDescription = false, "cordoned: by hand"
	parts := &api.NodeDeviceResource{Vendor: "nvidia", Type: "mig", Name: "1g.5gb", Instances: instances("", "MIG-b", "MIG-a"), Attributes: map[string]*api.Attribute{
		"unique.parents": word("GPU-p=MIG-a;GPU-q=MIG-b"), "unique.closeness": word("numa:4=GPU-p;nvlink:2=GPU-p,GPU-q,GPU-c,MIG-a,MIG-b"), "memory": word("much"),
	}}
	seats := &api.NodeDeviceResource{Vendor: "nvidia", Type: "shared", Name: "T4/1", Instances: instances("", "GPU-s::0", "GPU-s::1"), Attributes: map[string]*api.Attribute{
		"sharing": word("suspend"), "slice_memory": number(7, ""), "numa_node": number(3, ""), "type": word("T4"),
	}}
	h := Hardware{ResourceNames: map[string]string{"x": "accelerator"}, ModelMemoryMiB: map[string]int64{"T4": 15360}}
	named := &api.NodeDeviceResource{Vendor: "acme", Type: "accelerator", Name: "X1", Instances: instances("broken", "X-1")}
	n := NewNode(&api.Node{
		ID: "n", Name: "gpu-1", Datacenter: "dc", NodePool: "pool", NodeClass: "class", HTTPAddr: "10.0.0.1:4646", Status: "ready", SchedulingEligibility: "eligible", ModifyIndex: 9,
		Attributes: map[string]string{"kernel.name": "linux"}, Meta: map[string]string{"rack": "r1"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 5000}, Memory: api.NodeMemoryResources{MemoryMB: 9000},
			Devices: []*api.NodeDeviceResource{sliced, {Vendor: "acme", Type: "fpga", Name: "F", Instances: instances("", "F-1")}, pair, parts, seats, named}},
		ReservedResources: &api.NodeReservedResources{Cpu: api.NodeReservedCpuResources{CpuShares: 500}, Memory: api.NodeReservedMemoryResources{MemoryMB: 800}},
	}, h)
	device := func(g *api.NodeDeviceResource, ids ...string) *constraint.Device {
		d := deviceGroup(g)
		if !slices.Equal(d.IDs, ids) || d.Vendor != g.Vendor || d.Type != g.Type || d.Name != g.Name {
			t.Errorf("%s has %q as %+v", g.ID(), d.IDs, d)
		}
		return d
	}
	pairOf, partsOf := device(pair, "GPU-d", "GPU-c", "", "GPU-e::x"), device(parts, "MIG-b", "MIG-a")
	gpus := []place.GPU{
		{ID: "X-1", Vendor: "acme", Model: "X1", Type: "X1", Mode: gpu.ModeWhole, NUMA: -1, Device: device(named, "X-1"), Unhealthy: true, MeasuredMilli: -1, MeasuredMemoryMiB: -1},
		{ID: "GPU-c", Vendor: "nvidia", Model: "NVIDIA A100", Type: "A100", Mode: gpu.ModeWhole, MemoryMiB: 40960, NUMA: 1, Device: pairOf, Peers: []int{2, 4}, MeasuredMilli: -1, MeasuredMemoryMiB: -1},
		{ID: "GPU-d", Vendor: "nvidia", Model: "NVIDIA A100", Type: "A100", Mode: gpu.ModeWhole, MemoryMiB: 40960, NUMA: 0, Device: pairOf, Peers: []int{0, 1, 3, 4}, MeasuredMilli: -1, MeasuredMemoryMiB: -1},
		{ID: "MIG-a", Vendor: "nvidia", Model: "1g.5gb", Type: "1g.5gb", Mode: gpu.ModeWhole, Profile: "1g.5gb", NUMA: 4, Device: partsOf, MeasuredMilli: -1, MeasuredMemoryMiB: -1},
		{ID: "MIG-b", Vendor: "nvidia", Model: "1g.5gb", Type: "1g.5gb", Mode: gpu.ModeWhole, Profile: "1g.5gb", NUMA: -1, Device: partsOf, MeasuredMilli: -1, MeasuredMemoryMiB: -1},
		{ID: "GPU-s", Vendor: "nvidia", Model: "T4", Type: "T4", Mode: gpu.ModeShared, Sharing: gpu.SharingSuspend, MemoryMiB: 15360, Replicas: 2, SeatPriority: 50, NUMA: 3, Device: device(seats, "GPU-s::0", "GPU-s::1"), MeasuredMilli: -1, MeasuredMemoryMiB: -1},
		{ID: "GPU-b", Vendor: "nvidia", Model: "Tesla T4", Type: "T4", Mode: gpu.ModeSlice, Sharing: gpu.SharingMPS, MemoryMiB: 16000, SliceMiB: 5333, Slices: 3, NUMA: -1, Device: device(sliced, "GPU-b::10", "GPU-b::2", "GPU-b::0"), Cordoned: true, MeasuredMilli: -1, MeasuredMemoryMiB: -1},
	}
	plan := place.Node{ID: "n", Name: "gpu-1", Datacenter: "dc", Pool: "pool", CPUMHz: 4500, MemoryMiB: 8200, GPUs: gpus, Attributes: map[string]string{
		"attr.kernel.name": "linux", "meta.rack": "r1", "node.unique.id": "n", "node.unique.name": "gpu-1", "nomad.drivers": "*", "node.datacenter": "dc", "node.class": "class", "node.pool": "pool",
	}}
	shown := view.Node{ID: "n", Name: "gpu-1", Datacenter: "dc", Pool: "pool", Class: "class", Address: "10.0.0.1:4646", Status: "ready", Eligible: true, CPUMHz: 4500, MemoryMiB: 8200, GPUs: []view.GPU{
		{UUID: "X-1", Vendor: "acme", Model: "X1", Type: "X1", Group: "acme/accelerator/X1", Mode: "whole", Instances: []view.Instance{{ID: "X-1"}}, Health: "broken", Measured: unknown},
		{UUID: "GPU-c", Vendor: "nvidia", Model: "NVIDIA A100", Type: "A100", Group: "nvidia/gpu/NVIDIA A100", Mode: "whole", MemoryMiB: 40960, Instances: one("GPU-c"), Healthy: true, Measured: unknown},
		{UUID: "GPU-d", Vendor: "nvidia", Model: "NVIDIA A100", Type: "A100", Group: "nvidia/gpu/NVIDIA A100", Mode: "whole", MemoryMiB: 40960, Instances: one("GPU-d"), Healthy: true, Measured: unknown},
		{UUID: "MIG-a", ParentUUID: "GPU-p", Vendor: "nvidia", Model: "1g.5gb", Type: "1g.5gb", Group: "nvidia/mig/1g.5gb", Mode: "whole", Profile: "1g.5gb", Instances: one("MIG-a"), Healthy: true, Measured: unknown},
		{UUID: "MIG-b", ParentUUID: "GPU-q", Vendor: "nvidia", Model: "1g.5gb", Type: "1g.5gb", Group: "nvidia/mig/1g.5gb", Mode: "whole", Profile: "1g.5gb", Instances: one("MIG-b"), Healthy: true, Measured: unknown},
		{UUID: "GPU-s", Vendor: "nvidia", Model: "T4", Type: "T4", Group: "nvidia/shared/T4/1", Mode: "shared", Sharing: "suspend", MemoryMiB: 15360, SliceMemoryMiB: 7, Instances: append(one("GPU-s::0"), one("GPU-s::1")...), Healthy: true, Measured: unknown},
		{UUID: "GPU-b", Vendor: "nvidia", Model: "Tesla T4", Type: "T4", Group: "nvidia/slice/T4/0", Mode: "slice", Sharing: "mps", Grade: "enforced", MemoryMiB: 16000, SliceMemoryMiB: 5333,
			Instances: []view.Instance{{ID: "GPU-b::0", Healthy: true}, {ID: "GPU-b::2"}, {ID: "GPU-b::10", Healthy: true}}, Healthy: true, Cordoned: true, Health: "cordoned: by hand", Measured: unknown},
	}}
	links := map[string]Slot{"X-1": {0, 0}, "GPU-c": {1, 0}, "GPU-d": {2, 0}, "MIG-a": {3, 0}, "MIG-b": {4, 0}, "GPU-s::0": {5, 0}, "GPU-s::1": {5, 1}, "GPU-b::0": {6, 0}, "GPU-b::2": {6, 1}, "GPU-b::10": {6, 2}}
	for id, want := range links {
		if got, known := n.Slot(id); !known || got != want || n.Index != 9 {
			t.Errorf("%s lies at %v, %v; want %v", id, got, known, want)
		}
	}
	for _, id := range []string{"GPU-b::1", "GPU-b::11", "GPU-b", "GPU-c::0", "F-1", "", "GPU-e::x"} {
		if got, known := n.Slot(id); known {
			t.Errorf("%q lies at %v", id, got)
		}
	}
	for i := range gpus {
		if i >= len(n.Plan.GPUs) || !reflect.DeepEqual(n.Plan.GPUs[i], gpus[i]) || !reflect.DeepEqual(n.View.GPUs[i], shown.GPUs[i]) {
			t.Fatalf("GPU %d:\n%+v\n%+v\nwant\n%+v\n%+v", i, n.Plan.GPUs[i], n.View.GPUs[i], gpus[i], shown.GPUs[i])
		}
	}
	if !reflect.DeepEqual(n.Plan, plan) || !reflect.DeepEqual(n.View, shown) {
		t.Errorf("got\n%+v\n%+v\nwant\n%+v\n%+v", n.Plan, n.View, plan, shown)
	}
	if err := n.Plan.Validate(); err != nil {
		t.Error(err)
	}
}

// What a slice has is what its plugin tells, else its part of the GPU, and at least a MiB; a node
// has no less than nothing.
func TestHowMuchThereIs(t *testing.T) {
	for name, row := range map[string]struct {
		memory, slice *api.Attribute
		want          int64
	}{
		"told": {number(16000, ""), number(1, ""), 1}, "not told": {number(16000, ""), nil, 8000}, "told as nothing": {number(16000, ""), number(0, ""), 8000},
		"nothing is told": {nil, nil, 1}, "hardly any": {number(1, ""), nil, 1}, "two each": {number(4, ""), nil, 2},
	} {
		got := Hardware{}.devices([]*api.NodeDeviceResource{{Vendor: "nvidia", Type: "slice", Name: "T4", Instances: instances("", "G::0", "G::1"), Attributes: map[string]*api.Attribute{"memory": row.memory, "slice_memory": row.slice}}})
		if len(got) != 1 || got[0].plan.SliceMiB != row.want || got[0].view.SliceMemoryMiB != row.want {
			t.Errorf("%s: a slice has %d MiB, want %d", name, got[0].plan.SliceMiB, row.want)
		}
	}
	for reserved, want := range map[int64]int64{0: 1000, 1: 999, 999: 1, 1000: 0, 1001: 0} {
		n := NewNode(&api.Node{NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 1000}, Memory: api.NodeMemoryResources{MemoryMB: 1000}},
			ReservedResources: &api.NodeReservedResources{Cpu: api.NodeReservedCpuResources{CpuShares: uint64(reserved)}, Memory: api.NodeReservedMemoryResources{MemoryMB: uint64(reserved)}}}, Hardware{})
		if n.Plan.CPUMHz != want || n.Plan.MemoryMiB != want || n.View.CPUMHz != want || n.View.MemoryMiB != want {
			t.Errorf("of 1000 with %d reserved %d and %d are left, want %d", reserved, n.Plan.CPUMHz, n.Plan.MemoryMiB, want)
		}
	}
}

// All that is known of an alloc, and nothing else, told by a list or by an event.
func TestAnAllocInFull(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(second, 0).UTC() }
	devices := func(name string, ids ...string) *api.AllocatedDeviceResource {
		return &api.AllocatedDeviceResource{Vendor: "nvidia", Type: "slice", Name: name, DeviceIDs: ids}
	}
	yes := true
	stub := &api.AllocationListStub{
		ID: "a", Namespace: "ns", JobID: "j", TaskGroup: "g", NodeID: "n", NodeName: "gpu-1", ClientStatus: "running", DesiredStatus: "run", FollowupEvalID: "f", NextAllocation: "next",
		DeploymentStatus: &api.AllocDeploymentStatus{Healthy: &yes, Canary: true}, CreateTime: 7e9, ModifyTime: 90e9, ModifyIndex: 12,
		TaskStates: map[string]*api.TaskState{"t": {StartedAt: at(20), FinishedAt: at(30), Events: []*api.TaskEvent{
			{Type: api.TaskStarted},
			{Type: api.TaskDriverMessage, Details: map[string]string{gpu.SavedDetail: at(25).Format(time.RFC3339Nano)}},
			{Type: api.TaskDriverMessage, Details: map[string]string{gpu.ComputeDetail: "300"}},
		}}},
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{
			"t":    {Cpu: api.AllocatedCpuResources{CpuShares: 100}, Memory: api.AllocatedMemoryResources{MemoryMB: 50}, Devices: []*api.AllocatedDeviceResource{devices("T4/0", "G::0", "G::1"), devices("T4/1", "H::0")}},
			"side": {Cpu: api.AllocatedCpuResources{CpuShares: 20}, Memory: api.AllocatedMemoryResources{MemoryMB: 5}},
		}},
	}
	want := Alloc{
		Index: 12, ID: "a", Namespace: "ns", Job: "j", Group: "g", NodeID: "n", NodeName: "gpu-1", Status: "running", Healthy: true, Canary: true, Created: time.Unix(7, 0),
		Began: at(20), CPUMHz: 120, MemoryMiB: 55, Devices: []TaskDevices{{"t", "nvidia/slice/T4/0", []string{"G::0", "G::1"}}, {"t", "nvidia/slice/T4/1", []string{"H::0"}}},
		Saved: map[string]time.Time{"t": at(25)}, Compute: map[string]int64{"t": 300}, Started: map[string]bool{"t": true},
	}
	for name, row := range map[string]struct {
		change func(s *api.AllocationListStub)
		want   func(a *Alloc)
	}{
		"it runs":             {func(*api.AllocationListStub) {}, func(*Alloc) {}},
		"it is to end":        {func(s *api.AllocationListStub) { s.DesiredStatus = "stop" }, func(a *Alloc) { a.Stopping = true }},
		"it is not deployed":  {func(s *api.AllocationListStub) { s.DeploymentStatus = nil }, func(a *Alloc) { a.Healthy, a.Canary = false, false }},
		"it is not yet well":  {func(s *api.AllocationListStub) { s.DeploymentStatus = &api.AllocDeploymentStatus{} }, func(a *Alloc) { a.Healthy, a.Canary = false, false }},
		"without resources":   {func(s *api.AllocationListStub) { s.AllocatedResources = nil }, func(a *Alloc) { a.CPUMHz, a.MemoryMiB, a.Devices, a.Began = 0, 0, nil, time.Time{} }},
		"it ended":            {func(s *api.AllocationListStub) { s.ClientStatus = "complete" }, func(a *Alloc) { a.Status, a.Ended = "complete", at(30) }},
		"it is lost":          {func(s *api.AllocationListStub) { s.ClientStatus = "lost" }, func(a *Alloc) { a.Status, a.Ended = "lost", time.Unix(90, 0) }},
		"it ended, who knows": {func(s *api.AllocationListStub) { s.ClientStatus, s.ModifyTime = "lost", 0 }, func(a *Alloc) { a.Status = "lost" }},
		"just after 1970":     {func(s *api.AllocationListStub) { s.ClientStatus, s.ModifyTime = "lost", 1 }, func(a *Alloc) { a.Status, a.Ended = "lost", time.Unix(0, 1) }},
		"it is replaced":      {func(s *api.AllocationListStub) { s.ClientStatus = "failed" }, func(a *Alloc) { a.Status, a.Ended = "failed", at(30) }},
		"it returns": {func(s *api.AllocationListStub) { s.ClientStatus, s.NextAllocation = "failed", "" }, func(a *Alloc) {
			a.Status, a.Ended, a.Failed, a.Returns = "failed", at(30), true, true
		}},
	} {
		s, w := *stub, want
		row.change(&s)
		row.want(&w)
		if got := NewAlloc(&s); !reflect.DeepEqual(*got, w) {
			t.Errorf("%s: listed as\n%+v, want\n%+v", name, *got, w)
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var e eventAlloc
		if err := json.Unmarshal(text, &e); err != nil {
			t.Fatal(err)
		}
		if got := e.alloc(); !reflect.DeepEqual(*got, w) {
			t.Errorf("%s: told as\n%+v, want\n%+v", name, *got, w)
		}
	}
}

// An alloc's work is saved since that of its last task is, in whichever order they stand.
func TestWhoSavedLongestAgoCounts(t *testing.T) {
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	for _, saved := range []map[string]time.Time{{"a": early, "b": late}, {"a": late, "b": early}} {
		a := &Alloc{Devices: []TaskDevices{{Task: "a"}, {Task: "b"}}, Saved: saved}
		if got := a.SavedAt(); !got.Equal(early) {
			t.Errorf("of %v: %s", saved, got)
		}
	}
	if got := (&Alloc{Saved: map[string]time.Time{"a": early}}).SavedAt(); !got.IsZero() {
		t.Errorf("without GPUs: %s", got)
	}
}

// What tasks said before is kept where Nomad has it no more; not what a later start or a later
// word ends.
func TestWhatIsKeptOfWhatTasksSaid(t *testing.T) {
	early, late := time.Unix(1000, 0), time.Unix(2000, 0)
	for name, row := range map[string]struct{ before, now, want Alloc }{
		"nothing":             {},
		"nothing is said now": {Alloc{Compute: map[string]int64{"t": 300}, Saved: map[string]time.Time{"t": early}}, Alloc{}, Alloc{Compute: map[string]int64{"t": 300}, Saved: map[string]time.Time{"t": early}}},
		"beside another's": {Alloc{Compute: map[string]int64{"t": 300}, Saved: map[string]time.Time{"t": early}}, Alloc{Compute: map[string]int64{"u": 200}, Saved: map[string]time.Time{"u": early}},
			Alloc{Compute: map[string]int64{"t": 300, "u": 200}, Saved: map[string]time.Time{"t": early, "u": early}}},
		"other words": {Alloc{Compute: map[string]int64{"t": 300}, Saved: map[string]time.Time{"t": early}}, Alloc{Compute: map[string]int64{"t": 200}, Saved: map[string]time.Time{"t": late}},
			Alloc{Compute: map[string]int64{"t": 200}, Saved: map[string]time.Time{"t": late}}},
		"later ones are kept": {Alloc{Saved: map[string]time.Time{"t": late}}, Alloc{Saved: map[string]time.Time{"t": early}}, Alloc{Saved: map[string]time.Time{"t": late}}},
		"a start":             {Alloc{Compute: map[string]int64{"t": 300}}, Alloc{Started: map[string]bool{"t": true}}, Alloc{Started: map[string]bool{"t": true}}},
	} {
		got := row.now
		got.KeepSaid(&row.before)
		if !reflect.DeepEqual(got, row.want) {
			t.Errorf("%s: %+v, want %+v", name, got, row.want)
		}
	}
}

// An alloc that was listed says its version, one of an event only when Nomad placed it or brought it up to
// one: a change by its node is none.
func TestAllocIsOfAnEarlierVersion(t *testing.T) {
	job := &Job{Index: 20, Version: 2}
	for version, want := range map[uint64]bool{0: true, 1: true, 2: false} {
		if got := NewAlloc(&api.AllocationListStub{JobVersion: version, ModifyIndex: 30}).OfEarlier(job); got != want {
			t.Errorf("listed with version %d: %v", version, got)
		}
	}
	for placed, want := range map[uint64]bool{19: true, 20: false, 21: false} {
		if got := (&eventAlloc{AllocModifyIndex: placed, ModifyIndex: 30}).alloc().OfEarlier(job); got != want {
			t.Errorf("told of as placed at %d: %v", placed, got)
		}
	}
}
