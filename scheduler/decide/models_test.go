// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// The models of a queue bind whatever is asked for: a request, and the user's own device
// block, for Nomad chooses the GPU of that by itself. They are written as Nomad knows
// them, by whichever of their names the operator wrote.
func TestTheModelsOfAQueueBindDeviceBlocks(t *testing.T) {
	const byType, byModel = "${device.attr.type}", "${device.attr.model}"
	for _, row := range []struct {
		models, target, value string
	}{
		{`"T4"`, byType, "T4"},
		{`"t4"`, byType, "T4"},
		{`"T4", "A100"`, byType, "T4,A100"}, // A100 may join
		{`"Tesla-T4", "A100"`, byModel, "Tesla T4"},
	} {
		queue := "queue \"q\" {\n gpus = 4\n namespaces = [\"default\"]\n models = [" + row.models + "]\n}\n"
		b := servicetest.New(t, queue, servicetest.Machine("a", 2))
		own := servicetest.Ask("own", "1", 1)
		own.Tasks[0].Request, own.Tasks[0].Devices = gpu.Request{}, []admit.DeviceAsk{{Name: "nvidia/slice", Count: 4}}
		bound := b.Submit(t, own).Tasks[0].Bound
		if bound == nil || bound.LTarget != row.target || bound.RTarget != row.value || bound.Operand != "set_contains_any" {
			t.Errorf("%s: the user's own block is bound to %+v", row.models, bound)
		}
		if row.models != `"T4", "A100"` && row.models != `"Tesla-T4", "A100"` {
			continue // one model is written as it always was
		}
		if c := b.Submit(t, servicetest.Ask("request", "4G", 1)).Tasks[0].Devices[0].Constraints[0]; c.LTarget != row.target || c.RTarget != row.value {
			t.Errorf("%s: a request is bound to %+v", row.models, c)
		}
	}
	b := servicetest.New(t, servicetest.OneGPU, servicetest.Machine("a", 2))
	own := servicetest.Ask("own", "1", 1)
	own.Tasks[0].Request, own.Tasks[0].Devices = gpu.Request{}, []admit.DeviceAsk{{Name: "nvidia/slice", Count: 4}}
	if bound := b.Submit(t, own).Tasks[0].Bound; bound != nil {
		t.Errorf("a queue of any model binds it to %+v", bound)
	}
}

// Where a queue's work may run is written into the job, in clusters of every size: Nomad
// alone chooses the node of what waits, and of what it starts by itself.
func TestTheNodesOfAQueueBindItsJobs(t *testing.T) {
	for rules, want := range map[string]admit.Constraint{
		`datacenters = ["dc1"]`:            {LTarget: "${node.datacenter}", Operand: "set_contains_any", RTarget: "dc1"},
		`node_pools = ["default", "more"]`: {LTarget: "${node.pool}", Operand: "set_contains_any", RTarget: "default,more"},
		"constraint {\n attribute = \"meta.rack\"\n operator = \"!=\"\n value = \"r1\"\n}": {LTarget: "${meta.rack}", Operand: "!=", RTarget: "r1"},
	} {
		b := servicetest.New(t, "queue \"q\" {\n gpus = 4\n namespaces = [\"default\"]\n "+rules+"\n}\n", servicetest.Machine("a", 2))
		for name, change := range map[string]func(*admit.Ask){
			"service": func(*admit.Ask) {}, "system": func(a *admit.Ask) { a.JobType = "system" }, "periodic": func(a *admit.Ask) { a.Later = true },
			"larger than the room": func(a *admit.Ask) { a.Count = 8 },
		} {
			a := servicetest.Ask(name, "8G", 1)
			a.NodePool = "all"
			change(&a)
			for range 2 { // submitted again, it is the same
				if d := b.Submit(t, a); len(d.Bounds) != 1 || d.Bounds[0] != want {
					t.Errorf("%s, %s: bounds %+v", rules, name, d.Bounds)
				}
				b.Register(a)
			}
		}
	}
}

// machineOf is a node with two GPUs of another type than Machine has, of 16 slices each.
func machineOf(name, gpuType string) *nomad.Node {
	n := &api.Node{
		ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
	}
	for i := range 2 {
		d := servicetest.SlicedGPU(name, i, 16)
		d.Name = fmt.Sprintf("%s/%d", gpuType, i)
		model := "NVIDIA " + gpuType
		d.Attributes["type"].StringVal, d.Attributes["model"].StringVal = &gpuType, &model
		n.NodeResources.Devices = append(n.NodeResources.Devices, d)
	}
	return nomad.NewNode(n, nomad.Hardware{})
}

// A model is excluded by the name that its GPUs have, wherever in the cluster the one GPU of it is.
func TestAModelIsExcludedAsItIsNamed(t *testing.T) {
	for _, machines := range [][]*nomad.Node{{servicetest.Machine("a", 1), machineOf("b", "A100")}, {machineOf("a", "A100"), servicetest.Machine("b", 1)}} {
		s := servicetest.New(t, "", machines...)
		d := s.Submit(t, servicetest.Ask("job", "1(!t4)", 1))
		excludes := slices.ContainsFunc(d.Tasks[0].Devices[0].Constraints, func(c admit.Constraint) bool {
			return c.LTarget == "${device.attr.type}" && c.Operand == "!=" && c.RTarget == "T4"
		})
		if !excludes {
			t.Errorf("it asks for %+v", d.Tasks[0].Devices)
		}
	}
}

// Models are ranked where a request names several and its queue leaves several: not those of a queue.
func TestOnlyARequestsOwnOrderIsRanked(t *testing.T) {
	for name, row := range map[string]struct {
		request, models string
		ranks           int
	}{
		"in an order":                 {request: "1(A100|T4)", ranks: 2},
		"one of them":                 {request: "1(A100)"},
		"of a queue of both":          {request: "1", models: `"A100", "T4"`},
		"in an order, of a queue":     {request: "1(A100|T4)", models: `"T4", "A100"`, ranks: 2},
		"one of them is of its queue": {request: "1(A100|T4)", models: `"T4"`},
	} {
		queue := ""
		if row.models != "" {
			queue = "queue \"q\" {\n gpus = 4\n namespaces = [\"default\"]\n models = [" + row.models + "]\n}\n"
		}
		s := servicetest.New(t, queue, servicetest.Machine("a", 1), machineOf("b", "A100"))
		a := servicetest.Ask("job", row.request, 2)
		if d := s.Submit(t, a); len(d.Tasks[0].Devices[0].Rank) != row.ranks {
			t.Errorf("%s: %+v", name, d.Tasks[0].Devices[0])
		}
	}
}
