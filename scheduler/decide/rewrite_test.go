// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// wholeMachine is a node with one GPU that is given out as a whole.
func wholeMachine(name string) *nomad.Node {
	n := &api.Node{
		ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
	}
	d := servicetest.SlicedGPU(name, 0, 1)
	d.Type, d.Name, d.Instances[0].ID = "gpu", "T4", "GPU-"+name+"-0"
	delete(d.Attributes, "slices")
	delete(d.Attributes, "slice_memory")
	delete(d.Attributes, "sharing")
	n.NodeResources.Devices = []*api.NodeDeviceResource{d}
	return nomad.NewNode(n, nomad.Hardware{})
}

// hold shows an alloc that has the whole GPU of a machine.
func hold(b *servicetest.Service, a admit.Ask, id, machine string) {
	b.Run(a, id, machine, 0, 0, 0)
	alloc := b.Alloc(id)
	b.Index++
	alloc.Index = b.Index
	alloc.Devices = []nomad.TaskDevices{{Task: "t", Group: "nvidia/gpu/T4", IDs: []string{fmt.Sprintf("GPU-%s-0", machine)}}}
	b.State.Apply([]nomad.Change{{Alloc: &alloc}}, b.Index)
}

// waiter is a job that waits with the block nvidia/gpu; a sliced GPU exists
// since, and is taken.
func waitingJob(t *testing.T, b *servicetest.Service) admit.Ask {
	t.Helper()
	tenant := servicetest.Ask("tenant", "1", 1)
	b.Register(tenant)
	hold(b, tenant, "alloc-whole", "a")
	a := servicetest.Ask("waiting", "1", 1)
	if d := b.Submit(t, a); d.Tasks[0].Devices[0].Name != "nvidia/gpu" || len(d.Preferred) != 0 {
		t.Fatalf("got %+v", d)
	}
	b.Register(a)
	b.Block(a, 1)
	if p := b.Cluster(t).Pending; len(p) != 1 || strings.Count(p[0].Reason, "no node has room for 1 now") != 1 {
		t.Errorf("the reason is not told once: %+v", p)
	}
	b.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 1)}}, b.Index)
	other := servicetest.Ask("other", "16G", 1)
	b.Register(other)
	b.Run(other, "alloc-slices", "b", 0, 0, 16)
	if due := b.Next(nil, true); due != nil {
		t.Fatalf("nothing is free, and yet %+v", due)
	}
	return a
}

func wantSlices(t *testing.T, d *admit.Decision) {
	t.Helper()
	device := d.Tasks[0].Devices[0]
	if device.Name != "nvidia/slice" || device.Count != 16 || len(d.Preferred) != 1 || d.Preferred[0] != "id-b" {
		t.Errorf("got %+v", d)
	}
}

// Regression: a group kept the form of the GPUs that there were when it came,
// and waited for ever beside free ones of another form.
func TestAGroupThatWaitsTakesAnotherForm(t *testing.T) {
	t.Run("by itself", func(t *testing.T) {
		b := servicetest.New(t, "", wholeMachine("a"))
		a := waitingJob(t, b)
		b.End("alloc-slices")
		due := b.Next(nil, true)
		if due == nil || due.Job.ID != "waiting" || !due.Revision.Retry {
			t.Fatalf("due is %+v", due)
		}
		d, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision)
		if err != nil || d == nil {
			t.Fatalf("got %+v, %v", d, err)
		}
		wantSlices(t, &d[0])
		if due := b.Next(nil, true); due != nil {
			t.Errorf("it was helped, and yet %+v", due)
		}
	})
	t.Run("when it is submitted again", func(t *testing.T) {
		b := servicetest.New(t, "", wholeMachine("a"))
		a := waitingJob(t, b)
		if d := b.Submit(t, a); d.Tasks[0].Devices[0].Name != "nvidia/gpu" {
			t.Errorf("no room, and yet its blocks are new: %+v", d)
		}
		b.End("alloc-slices")
		d := b.Submit(t, a)
		wantSlices(t, &d)
	})
	t.Run("after an eviction", func(t *testing.T) {
		b := servicetest.New(t, "", wholeMachine("a"))
		a := waitingJob(t, b)
		exclude := decide.Revision{Group: "g", Exclude: []string{"id-b"}, For: "default/high"}
		if _, err := b.Revise(t.Context(), []admit.Ask{a}, exclude); err != nil {
			t.Fatal(err)
		}
		b.Register(a)
		b.Block(servicetest.Ask("high", "16G", 1), 1)
		b.End("alloc-slices")
		if due := b.Next(nil, true); due != nil {
			t.Errorf("the room is made for another group, and yet %+v", due)
		}
		b.State.Apply([]nomad.Change{{Node: servicetest.Machine("c", 1)}}, b.Index)
		due := b.Next(nil, true)
		if due == nil || !due.Revision.Retry {
			t.Fatalf("due is %+v", due)
		}
		d, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision)
		if err != nil || d[0].Tasks[0].Devices[0].Name != "nvidia/slice" || len(d[0].Preferred) != 1 || d[0].Preferred[0] != "id-c" {
			t.Errorf("got %+v, %v", d, err)
		}
	})
}

func TestWhatRunsKeepsItsForm(t *testing.T) {
	b := servicetest.New(t, "", wholeMachine("a"))
	a := servicetest.Ask("job", "1", 2)
	b.Submit(t, a)
	b.Register(a)
	hold(b, a, "alloc-1", "a")
	b.Block(a, 1)
	b.State.Apply([]nomad.Change{{Node: servicetest.Machine("b", 1)}}, b.Index)
	if due := b.Next(nil, true); due != nil {
		t.Errorf("a changed block would replace the running alloc, and yet %+v", due)
	}
	if d := b.Submit(t, a); d.Tasks[0].Devices[0].Name != "nvidia/gpu" {
		t.Errorf("got %+v", d)
	}
}

// Room that is made in another form is preferred by the one alloc that it is made for, and by none of
// several.
func TestRoomInAnotherFormIsPreferredByOne(t *testing.T) {
	for _, count := range []int{1, 2} {
		s := servicetest.New(t, servicetest.Quick, wholeMachine("a"))
		tenant := servicetest.Ask("tenant", "1", 1)
		s.Register(tenant)
		hold(s, tenant, "alloc-whole", "a")
		a := servicetest.Ask("waits", "1", count)
		s.Submit(t, a)
		s.Register(a)
		s.Block(a, count)
		joins(s, servicetest.Machine("b", 1))
		low := servicetest.Ask("low", "16G", 1)
		low.Priority = 20
		s.Show(low, false)
		s.Run(low, "alloc-low", "b", 0, 0, 16)
		s.Pass(servicetest.Settled)
		due := s.Next(nil, true)
		if due == nil || due.Evict == nil {
			t.Fatalf("due is %+v", due)
		}
		d, err := s.Revise(t.Context(), []admit.Ask{a}, due.Revision)
		if err != nil || d == nil {
			t.Fatalf("got %+v, %v", d, err)
		}
		wantSlices(t, &d[0])
		if prefers := d[0].Tasks[0].Devices[0].Prefer; (prefers != "") != (count == 1) {
			t.Errorf("of %d: prefers %q", count, prefers)
		}
	}
}
