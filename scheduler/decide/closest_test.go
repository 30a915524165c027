// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// twoSockets is a node with whole GPUs in one device group, every other one on the
// same NUMA node; with one socket all are.
func twoSockets(name string, gpus, sockets int) *nomad.Node {
	n := &api.Node{
		ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
	}
	d := servicetest.SlicedGPU(name, 0, 0)
	d.Type, d.Name = "gpu", "T4"
	near := make(gpu.Closeness, sockets)
	for i := range gpus {
		id := fmt.Sprintf("GPU-%s-%d", name, i)
		d.Instances = append(d.Instances, &api.NodeDevice{ID: id, Healthy: true})
		at := &near[i%sockets]
		at.By, at.N, at.UUIDs = gpu.NearNUMA, i%sockets, append(at.UUIDs, id)
	}
	for _, name := range []string{"slices", "slice_memory", "sharing"} {
		delete(d.Attributes, name)
	}
	text := near.String()
	d.Attributes[gpu.AttrCloseness] = &api.Attribute{StringVal: &text}
	n.NodeResources.Devices = []*api.NodeDeviceResource{d}
	return nomad.NewNode(n, nomad.Hardware{})
}

// leftOut are the instances that a decision's first block leaves out.
func leftOut(d admit.Decision) []string {
	var ids []string
	for _, c := range d.Tasks[0].Devices[0].Constraints {
		if c.RTarget == "${device.ids}" && c.Operand == "!=" {
			ids = append(ids, c.LTarget)
		}
	}
	return ids
}

func TestTasksOfSeveralGPUsGetTheClosest(t *testing.T) {
	for name, row := range map[string]struct {
		request string
		count   int
		sockets int
		kind    string
		want    []string
	}{
		"two of four":                      {"2", 1, 2, "batch", []string{"GPU-a-1", "GPU-a-3"}},
		"two of four, all equally near":    {"2", 1, 1, "batch", nil},
		"one":                              {"1", 1, 2, "batch", nil},
		"all":                              {"4", 1, 2, "batch", nil},
		"several allocs on one node":       {"2", 2, 2, "batch", nil},
		"three, of which two are together": {"3", 1, 2, "batch", []string{"GPU-a-3"}},
		"a service that may grow":          {"2", 1, 2, "service", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := servicetest.New(t, "", twoSockets("a", 4, row.sockets))
			a := servicetest.Ask("job", row.request, row.count)
			a.JobType = row.kind
			if d := b.Submit(t, a); !slices.Equal(leftOut(d), row.want) {
				t.Errorf("%q are left out, want %q: %+v", leftOut(d), row.want, d.Tasks)
			}
		})
	}
}

// Every alloc that has a node to itself gets the closest there; an author's own
// blocks are left as they are.
func TestEachNodesClosestAreMeant(t *testing.T) {
	b := servicetest.New(t, "", twoSockets("a", 4, 2), twoSockets("b", 4, 2))
	a := servicetest.Ask("job", "3", 2)
	a.Distinct = admit.DistinctInGroup
	if d := b.Submit(t, a); !slices.Equal(leftOut(d), []string{"GPU-a-3", "GPU-b-3"}) {
		t.Errorf("%q are left out", leftOut(d))
	}
	plain := blocksWith("plain", 2)
	plain.Tasks[0].Devices[0].Name = "nvidia/gpu"
	b = servicetest.New(t, "", twoSockets("a", 4, 2))
	if d := b.Submit(t, plain); len(d.Tasks[0].Devices) > 0 && len(leftOut(d)) > 0 {
		t.Errorf("%q are left out of a block that the author wrote", leftOut(d))
	}
}

// A job that waits for GPUs that were meant is given others once those are free.
func TestAJobDoesNotWaitForTheClosest(t *testing.T) {
	b := servicetest.New(t, "", twoSockets("a", 4, 2))
	a := servicetest.Ask("job", "2", 1)
	a.Gang = true
	if d := b.Submit(t, a); !slices.Equal(leftOut(d), []string{"GPU-a-1", "GPU-a-3"}) {
		t.Fatalf("%q are left out", leftOut(d))
	}
	b.Register(a)
	tenant := servicetest.Ask("tenant", "1", 1)
	b.Register(tenant)
	hold(b, tenant, "alloc-tenant", "a") // GPU-a-0, around the service
	b.LetTimePass()
	b.Block(a, 1)
	due := b.Next(nil, true)
	if due == nil || due.Job.ID != "job" {
		t.Fatalf("due is %+v", due)
	}
	d, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision)
	if err != nil || d == nil || !slices.Equal(leftOut(d[0]), []string{"GPU-a-0", "GPU-a-2"}) {
		t.Errorf("got %+v, %v; %s", d, err, strings.Join(d[0].Explanation, "\n"))
	}
}

// Room that is made in another form is for GPUs that are near each other too, where the group has
// one alloc; another alloc may come to the GPUs that this one leaves.
func TestRoomInAnotherFormIsForTheClosest(t *testing.T) {
	for count, want := range map[int][]string{1: {"GPU-a-1", "GPU-a-3"}, 2: nil} {
		s := servicetest.New(t, servicetest.Quick, servicetest.Machine("b", 2))
		s.Tenant(t, "high-1", 90, "b", 0, 0, 16)
		s.Tenant(t, "high-2", 90, "b", 1, 0, 16)
		a := servicetest.Ask("waits", "2", count)
		a.JobType = "batch"
		if d := s.Submit(t, a); d.Tasks[0].Devices[0].Name != "nvidia/slice" {
			t.Fatalf("it asks for %+v", d.Tasks)
		}
		s.Register(a)
		s.Block(a, count)
		joins(s, twoSockets("a", 4, 2))
		low := servicetest.Ask("low", "4", 1)
		low.Priority = 10
		s.Show(low, false)
		s.Run(low, "alloc-low", "a", 0, 0, 0)
		alloc := s.Alloc("alloc-low")
		all := []string{"GPU-a-0", "GPU-a-1", "GPU-a-2", "GPU-a-3"}
		alloc.Index, alloc.Devices = s.Index+1, []nomad.TaskDevices{{Task: "t", Group: "nvidia/gpu/T4", IDs: all}}
		s.State.Apply([]nomad.Change{{Alloc: &alloc}}, s.Index+1)
		s.Pass(servicetest.Settled)
		due := s.Next(nil, true)
		if due == nil || due.Evict == nil {
			t.Fatalf("due is %+v", due)
		}
		d, err := s.Revise(t.Context(), []admit.Ask{a}, due.Revision)
		if err != nil || d == nil || !slices.Equal(leftOut(d[0]), want) {
			t.Errorf("of %d: %v, %+v", count, err, d)
		}
	}
}
