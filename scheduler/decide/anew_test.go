package decide

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// wholeMachine is a node with one GPU that is given out as a whole.
func wholeMachine(name string) *nomad.Node {
	n := &api.Node{
		ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
	}
	d := slicedGPU(name, 0, 1)
	d.Type, d.Name, d.Instances[0].ID = "gpu", "T4", "GPU-"+name+"-0"
	delete(d.Attributes, "slices")
	delete(d.Attributes, "slice_memory")
	delete(d.Attributes, "sharing")
	n.NodeResources.Devices = []*api.NodeDeviceResource{d}
	return nomad.NewNode(n, nomad.Hardware{})
}

// hold shows an alloc that has the whole GPU of a machine.
func (b *bench) hold(a admit.Ask, id, machine string) {
	b.run(a, id, machine, 0, 0, 0)
	alloc := *b.book.allocs[id]
	b.index++
	alloc.Index = b.index
	alloc.Devices = []nomad.TaskDevices{{Task: "t", Group: "nvidia/gpu/T4", IDs: []string{fmt.Sprintf("GPU-%s-0", machine)}}}
	b.book.Apply([]nomad.Change{{Alloc: &alloc}}, b.index)
}

// waiter is a job that waits with the block nvidia/gpu; a sliced GPU exists
// since, and is taken.
func waitingJob(t *testing.T, b *bench) admit.Ask {
	t.Helper()
	tenant := ask("tenant", "1", 1)
	b.register(tenant)
	b.hold(tenant, "alloc-whole", "a")
	a := ask("waiting", "1", 1)
	if d := b.decide(t, a); d.Tasks[0].Devices[0].Name != "nvidia/gpu" || len(d.Preferred) != 0 {
		t.Fatalf("got %+v", d)
	}
	b.register(a)
	b.block(a, 1)
	if p := b.book.pending(); len(p) != 1 || strings.Count(p[0].Reason, "wait for room") != 1 {
		t.Errorf("the reason is not told once: %+v", p)
	}
	b.book.Apply([]nomad.Change{{Node: machine("b", 1)}}, b.index)
	other := ask("other", "16G", 1)
	b.register(other)
	b.run(other, "alloc-slices", "b", 0, 0, 16)
	if due := b.book.NextDue(nil, true); due != nil {
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
		b := newBench(t, "", wholeMachine("a"))
		a := waitingJob(t, b)
		b.end("alloc-slices")
		due := b.book.NextDue(nil, true)
		if due == nil || due.Job.ID != "waiting" || !due.Revision.Retry {
			t.Fatalf("due is %+v", due)
		}
		d, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision)
		if err != nil || d == nil {
			t.Fatalf("got %+v, %v", d, err)
		}
		wantSlices(t, &d[0])
		if due := b.book.NextDue(nil, true); due != nil {
			t.Errorf("it was helped, and yet %+v", due)
		}
	})
	t.Run("when it is submitted again", func(t *testing.T) {
		b := newBench(t, "", wholeMachine("a"))
		a := waitingJob(t, b)
		if d := b.decide(t, a); d.Tasks[0].Devices[0].Name != "nvidia/gpu" {
			t.Errorf("no room, and yet its blocks are new: %+v", d)
		}
		b.end("alloc-slices")
		d := b.decide(t, a)
		wantSlices(t, &d)
	})
	t.Run("after an eviction", func(t *testing.T) {
		b := newBench(t, "", wholeMachine("a"))
		a := waitingJob(t, b)
		exclude := Revision{Group: "g", Exclude: "id-b", For: "default/high"}
		if _, err := b.Revise(t.Context(), []admit.Ask{a}, exclude); err != nil {
			t.Fatal(err)
		}
		b.register(a)
		b.block(ask("high", "16G", 1), 1)
		b.end("alloc-slices")
		if due := b.book.NextDue(nil, true); due != nil {
			t.Errorf("the room is made for somebody else, and yet %+v", due)
		}
		b.book.Apply([]nomad.Change{{Node: machine("c", 1)}}, b.index)
		due := b.book.NextDue(nil, true)
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
	b := newBench(t, "", wholeMachine("a"))
	a := ask("job", "1", 2)
	b.decide(t, a)
	b.register(a)
	b.hold(a, "alloc-1", "a")
	b.block(a, 1)
	b.book.Apply([]nomad.Change{{Node: machine("b", 1)}}, b.index)
	if due := b.book.NextDue(nil, true); due != nil {
		t.Errorf("a changed block would replace the running alloc, and yet %+v", due)
	}
	if d := b.decide(t, a); d.Tasks[0].Devices[0].Name != "nvidia/gpu" {
		t.Errorf("got %+v", d)
	}
}
