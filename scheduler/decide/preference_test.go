// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// whole is a machine with whole GPUs of a model, as our device plugin tells of them, or as
// another plugin does: with no names but the group's.
func whole(name, model string, gpus int, ours bool) *nomad.Node {
	group := &api.NodeDeviceResource{Vendor: "nvidia", Type: "gpu", Name: model, Attributes: map[string]*api.Attribute{}}
	memory, short := int64(81920), gpu.ShortModel(model)
	group.Attributes["memory"] = &api.Attribute{IntVal: &memory, Unit: "MiB"}
	if ours {
		group.Attributes["model"], group.Attributes["type"] = &api.Attribute{StringVal: &model}, &api.Attribute{StringVal: &short}
	}
	for i := range gpus {
		group.Instances = append(group.Instances, &api.NodeDevice{ID: fmt.Sprintf("GPU-%s-%d", name, i), Healthy: true})
	}
	return nomad.NewNode(&api.Node{
		ID: "id-" + name, Name: name, Datacenter: "dc1", NodePool: "default", Status: "ready",
		SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024},
			Devices: []*api.NodeDeviceResource{group}},
	}, nomad.Hardware{})
}

// A request for several models has the first that has room; one that excludes models has
// any other. What is written keeps Nomad to both, and prefers in the same order.
func TestModelsInOrderAndExcluded(t *testing.T) {
	b := servicetest.New(t, "", whole("a", "NVIDIA A100-SXM4-80GB", 4, true), whole("h", "NVIDIA H100 80GB HBM3", 1, true), whole("v", "Tesla V100-SXM2-32GB", 4, true))
	for _, tc := range []struct {
		job, request, node, says string
	}{
		{"first", "1(H100|A100)", "id-h", ""},
		{"second", "1(H100|A100)", "id-a", "there is no room for it on H100, before A100 in its order"},
		{"by-full-name", "1(H100|NVIDIA-A100-SXM4-80GB)", "id-a", "before NVIDIA-A100-SXM4-80GB"},
		{"excluded", "1(!A100,!H100)", "id-v", ""},
		{"both", "1(V100|A100,!Tesla-V100-SXM2-32GB)", "id-a", "there is no room for it on V100"},
	} {
		ask := servicetest.Ask(tc.job, tc.request, 1)
		d := b.Submit(t, ask)
		if !slices.Equal(d.Preferred, []string{tc.node}) || !strings.Contains(strings.Join(d.Explanation, "\n"), tc.says) {
			t.Errorf("%s goes to %v: %q", tc.request, d.Preferred, d.Explanation)
		}
		device := d.Tasks[0].Devices[0]
		if again := b.Submit(t, ask); fmt.Sprint(again.Tasks) != fmt.Sprint(d.Tasks) {
			t.Errorf("%s, submitted again, has %+v, before %+v", tc.request, again.Tasks, d.Tasks)
		}
		switch tc.job {
		case "first", "second":
			want := []admit.Constraint{{LTarget: "${device.attr.type}", Operand: "set_contains_any", RTarget: "H100,A100"}}
			if !slices.Equal(device.Constraints, want) || len(device.Rank) != 2 || device.Rank[0].RTarget != "H100" || device.Rank[0].Weight <= device.Rank[1].Weight {
				t.Errorf("%s is written as %+v", tc.request, device)
			}
		case "excluded":
			want := []admit.Constraint{{LTarget: "${device.attr.type}", Operand: "!=", RTarget: "A100"}, {LTarget: "${device.attr.type}", Operand: "!=", RTarget: "H100"}}
			if !slices.Equal(device.Constraints, want) || device.Rank != nil {
				t.Errorf("%s is written as %+v", tc.request, device)
			}
		}
	}
	var refused *admit.Refusal
	_, err := b.Decide(t.Context(), []admit.Ask{servicetest.Ask("none", "1(!A100,!H100,!V100)", 1)}, false)
	if !errors.As(err, &refused) || refused.Status != http.StatusUnprocessableEntity || !strings.Contains(fmt.Sprint(refused.Details), "model V100, which is excluded") {
		t.Errorf("every model is excluded: %v, %+v", err, refused)
	}
}

// GPUs of another device plugin, which tells no type and no model beside the group's name,
// are asked for by that name; so are they excluded.
func TestModelsOfAnotherPlugin(t *testing.T) {
	const group = "${device.model}"
	for _, tc := range []struct {
		request string
		want    []admit.Constraint
	}{
		{"1(V100)", []admit.Constraint{{LTarget: group, Operand: "set_contains_any", RTarget: "Tesla V100-SXM2-32GB"}}},
		{"1(V100|H100)", []admit.Constraint{{LTarget: group, Operand: "set_contains_any", RTarget: "NVIDIA H100 80GB HBM3,Tesla V100-SXM2-32GB"}}},
		{"1(!V100)", []admit.Constraint{{LTarget: "${device.attr.type}", Operand: "!=", RTarget: "V100"}, {LTarget: group, Operand: "!=", RTarget: "Tesla V100-SXM2-32GB"}}},
		{"1", nil},
	} {
		theirs := whole("theirs", "Tesla V100-SXM2-32GB", 2, false)
		b := servicetest.New(t, "", theirs, whole("ours", "NVIDIA H100 80GB HBM3", 2, true))
		d := b.Submit(t, servicetest.Ask("job", tc.request, 1))
		if got := d.Tasks[0].Devices[0]; len(d.Preferred) != 1 || got.Name != "nvidia/gpu" || !slices.EqualFunc(got.Constraints, tc.want, func(a, b admit.Constraint) bool { return a == b }) {
			t.Errorf("%s goes to %v with %+v", tc.request, d.Preferred, got)
		}
	}
}

// A block that leaves Nomad the choice is placed on the first alternative that has room,
// bound to its queue's models in each, and is never rewritten.
func TestFirstAvailableIsPlanned(t *testing.T) {
	b := servicetest.New(t, "", whole("a", "NVIDIA A100-SXM4-80GB", 2, true), whole("h", "NVIDIA H100 80GB HBM3", 1, true))
	ask := func(job string) admit.Ask {
		a := servicetest.Ask(job, "1", 1)
		byName := func(name string, count int64) admit.DeviceAsk {
			return admit.DeviceAsk{Name: name, Count: count, Alternative: true}
		}
		first := byName("nvidia/gpu/NVIDIA H100 80GB HBM3", 1)
		first.Or = []admit.DeviceAsk{byName("nvidia/gpu/NVIDIA A100-SXM4-80GB", 2)}
		a.Tasks[0].Request, a.Tasks[0].Devices = gpu.Request{}, []admit.DeviceAsk{first}
		return a
	}
	for i, want := range []string{"id-h", "id-a"} {
		if d := b.Submit(t, ask(fmt.Sprint(i))); !slices.Equal(d.Preferred, []string{want}) {
			t.Errorf("job %d goes to %v: %v", i, d.Preferred, d.Explanation)
		}
	}
	if d := b.Submit(t, ask("2")); len(d.Preferred) != 0 || d.Outcome != "held" {
		t.Errorf("the third goes to %v: %+v", d.Preferred, d)
	}
}
