// SPDX-License-Identifier: MPL-2.0

package constraint

import (
	"fmt"
	"go/build"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/nomad/structs"
	psstructs "github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/hashicorp/nomad/scheduler/feasible"
)

// words are what both sides of a condition are made of: numbers, units, versions,
// sets, and what looks like one of them and is none.
var words = []string{
	"", "0", "1", "8", "-3", "007", "1.5", "1e3", "16 GiB", "16GiB", "16384 MiB", "16 GB", "17179869184", "16000 MB", "1 kB", "1 KB", "8 GB/s", "8 MHz", "100 W", "100000 mW", "0.1 kW",
	"true", "false", "T4", "a,b", "a, b,c", "c", "GPU-1::0,GPU-1::1", "GPU-1::1", "1.2.3", "1.2.3-beta1", "v1.2", ">= 1.2", ">= 1.2, < 2", "~> 1.2", "= 1.2.3", "!= 1.2.3", "> 1.2.3-alpha",
	"^T", "T[0-9", "[", ".*", "linux", "550.54.15", ">= 535", "12.4", "NaN", "Inf", "16 Gib",
}

var targets = []string{
	"${attr.kernel.name}", "${attr.memory}", "${attr.version}", "${attr.missing}", "${meta.rack}", "${node.class}", "${node.unique.id}", "${node.nothing}", "${nothing}",
	"${device.attr.memory}", "${device.attr.model}", "${device.attr.version}", "${device.attr.shared}", "${device.attr.power}", "${device.attr.share}", "${device.attr.missing}",
	"${device.model}", "${device.vendor}", "${device.type}", "${device.ids}", "${device.nothing}",
}

func some(r *rand.Rand, lists ...[]string) string {
	list := lists[r.IntN(len(lists))]
	return list[r.IntN(len(list))]
}

// reference is Nomad's own view of one node with one device group.
func reference() (*feasible.EvalContext, *structs.Node) {
	node := &structs.Node{
		ID: "8", Name: "n", Datacenter: "dc1", NodeClass: "T4", NodePool: "default",
		Attributes: map[string]string{"kernel.name": "linux", "memory": "16384", "version": "1.2.3"},
		Meta:       map[string]string{"rack": "a, b"},
		NodeResources: &structs.NodeResources{Devices: []*structs.NodeDeviceResource{{
			Vendor: "nvidia", Type: "slice", Name: "T4/0",
			Instances: []*structs.NodeDevice{{ID: "GPU-1::0", Healthy: true}, {ID: "GPU-1::1", Healthy: true}},
			Attributes: map[string]*psstructs.Attribute{
				"memory": psstructs.NewIntAttribute(16, "GiB"), "model": psstructs.NewStringAttribute("T4"), "version": psstructs.NewStringAttribute("1.2.3-beta1"),
				"shared": psstructs.NewBoolAttribute(true), "power": psstructs.NewFloatAttribute(0.1, "kW"), "share": psstructs.NewIntAttribute(8, ""),
			},
		}}},
	}
	return feasible.NewEvalContext(nil, nil, &structs.Plan{}, hclog.NewNullLogger()), node
}

func device() *Device {
	return &Device{Vendor: "nvidia", Type: "slice", Name: "T4/0", IDs: []string{"GPU-1::0", "GPU-1::1"}, Attributes: map[string]Value{
		"memory": Int(16, "GiB"), "model": Text("T4"), "version": Text("1.2.3-beta1"), "shared": Bool(true), "power": Float(0.1, "kW"), "share": Int(8, ""),
	}}
}

func nodeTargets(n *structs.Node) map[string]string {
	m := map[string]string{"node.unique.id": n.ID, "node.unique.name": n.Name, "node.datacenter": n.Datacenter, "node.class": n.NodeClass, "node.pool": n.NodePool}
	for k, v := range n.Attributes {
		m["attr."+k] = v
	}
	for k, v := range n.Meta {
		m["meta."+k] = v
	}
	return m
}

// nomadSays asks Nomad, which panics where it compares numbers that are none.
func nomadSays(check func() bool) (answer, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return check(), true
}

// TestNomadSaysTheSame asks Nomad's own checkers and this package the same
// questions, with every operator.
func TestNomadSaysTheSame(t *testing.T) {
	ctx, node := reference()
	have, group := nodeTargets(node), device()
	r := rand.New(rand.NewPCG(1, 2))
	met := map[string][2]int{}
	for range 40_000 {
		c := Constraint{some(r, words, targets), Operands[r.IntN(len(Operands))], some(r, words, words, targets)}
		theirs := &structs.Constraint{LTarget: c.Left, Operand: c.Operand, RTarget: c.Right}
		onNode, ok := nomadSays(func() bool { return feasible.NewConstraintChecker(ctx, []*structs.Constraint{theirs}).Feasible(node) })
		if ours := c.OnNode(have); ok && ours != onNode {
			t.Errorf("node: %q %s %q is %v, to Nomad %v", c.Left, c.Operand, c.Right, ours, onNode)
		}
		onDevice, ok := nomadSays(func() bool {
			checker := feasible.NewDeviceChecker(ctx)
			checker.SetTaskGroup(&structs.TaskGroup{Tasks: []*structs.Task{{Resources: &structs.Resources{Devices: structs.ResourceDevices{
				{Name: "slice", Count: 1, Constraints: []*structs.Constraint{theirs}}}}}}})
			return checker.Feasible(node)
		})
		ours := c.OnDevice(group)
		if ok && ours != onDevice {
			t.Errorf("device: %q %s %q is %v, to Nomad %v", c.Left, c.Operand, c.Right, ours, onDevice)
		}
		n := met[c.Operand]
		if ours {
			n[0]++
		} else {
			n[1]++
		}
		met[c.Operand] = n
		if t.Failed() {
			break
		}
	}
	for operand, n := range met {
		if n[0] == 0 || n[1] == 0 && !strings.HasPrefix(operand, "distinct") {
			t.Errorf("%s was met %d times and not %d times: the test asks too little", operand, n[0], n[1])
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"slice": true, "nvidia/slice": true, "nvidia/slice/T4/0": true, "nvidia/slice/T4": false, "nvidia/gpu": false, "amd/slice": false, "gpu": false, "T4": false,
	} {
		theirs := (&structs.NodeDeviceResource{Vendor: "nvidia", Type: "slice", Name: "T4/0"}).ID().Matches((&structs.RequestedDevice{Name: name}).ID())
		if got := device().Named(name); got != want || got != theirs {
			t.Errorf("%s: %v, want %v; to Nomad %v", name, got, want, theirs)
		}
	}
}

func TestUnitsAreNomads(t *testing.T) {
	for name, u := range units {
		theirs := psstructs.UnitIndex[name]
		if theirs == nil || theirs.Multiplier != u.times || theirs.InverseMultiplier != u.inverse {
			t.Errorf("%s: %+v, to Nomad %+v", name, u, theirs)
		}
	}
	if len(units) != len(psstructs.UnitIndex) {
		t.Errorf("%d units, Nomad has %d", len(units), len(psstructs.UnitIndex))
	}
}

func TestUnknownOperands(t *testing.T) {
	odd := Constraint{"a", "like", "a"}
	if odd.Known() || odd.OnNode(nil) || odd.OnDevice(device()) {
		t.Error("an operand that Nomad does not have is met")
	}
	if !(Constraint{"a", "", "a"}).Known() || !(Constraint{"a", "", "a"}).OnNode(nil) {
		t.Error("no operand means =")
	}
}

// The package is used by the placement core, which is pure.
func TestImports(t *testing.T) {
	p, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range p.Imports {
		if strings.Contains(path, ".") && path != "github.com/hashicorp/go-version" || slices.Contains([]string{"os", "net", "time", "sync"}, path) {
			t.Errorf("imports %s", path)
		}
	}
}

func ExampleConstraint_OnDevice() {
	d := &Device{Vendor: "nvidia", Type: "gpu", Name: "Tesla T4", Attributes: map[string]Value{"memory": Int(16384, "MiB")}}
	fmt.Println(Constraint{"${device.attr.memory}", ">=", "16 GiB"}.OnDevice(d), Constraint{"${device.attr.memory}", ">", "16 GiB"}.OnDevice(d))
	// Output: true false
}

// As Nomad's device allocator: what names instances is asked of each, on the right.
func TestOnInstance(t *testing.T) {
	for _, row := range []struct {
		c    Constraint
		want []bool // of GPU-1::0 and GPU-1::1
	}{
		{Constraint{"${device.ids}", "set_contains_any", "GPU-1::1,GPU-2::0"}, []bool{false, true}},
		{Constraint{"${device.ids}", "set_contains", "GPU-1::1"}, []bool{false, true}},
		{Constraint{"GPU-1::1", "!=", "${device.ids}"}, []bool{true, false}},
		{Constraint{"GPU-9::0", "!=", "${device.ids}"}, []bool{true, true}},
		{Constraint{"${device.ids}", "is_set", ""}, []bool{true, true}},
		{Constraint{"${device.attr.model}", "=", "another"}, []bool{true, true}},
	} {
		d := device()
		for i, id := range d.IDs {
			if got := row.c.OnInstance(d, id); got != row.want[i] {
				t.Errorf("%+v of %s is %v", row.c, id, got)
			}
		}
	}
}
