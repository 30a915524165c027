// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// What is said of all nodes is true after each that comes, changes or goes.
func TestNodesAreCounted(t *testing.T) {
	node := func(id, dc, rack string) *nomad.Node {
		return &nomad.Node{Plan: place.Node{ID: id, Datacenter: dc, Attributes: map[string]string{"attr.rack": rack}, GPUs: make([]place.GPU, 1)}}
	}
	inRackOne := constraint.Constraint{Left: "${attr.rack}", Operand: "=", Right: "1"}
	n := newNodes()
	for _, step := range []struct {
		name       string
		does       func()
		order, dcs []string
		meet       bool
	}{
		{"none", func() {}, nil, nil, true},
		{"one comes", func() { n.put(node("b", "x", "1")) }, []string{"b"}, []string{"x"}, true},
		{"another before it", func() { n.put(node("a", "y", "1")) }, []string{"a", "b"}, []string{"x", "y"}, true},
		{"one in another rack", func() { n.put(node("c", "x", "2")) }, []string{"a", "b", "c"}, []string{"x", "y"}, false},
		{"it moves to the rack", func() { n.put(node("c", "x", "1")) }, []string{"a", "b", "c"}, []string{"x", "y"}, true},
		{"one moves to the other datacenter", func() { n.put(node("a", "x", "1")) }, []string{"a", "b", "c"}, []string{"x"}, true},
		{"and out of the rack", func() { n.put(node("a", "x", "2")) }, []string{"a", "b", "c"}, []string{"x"}, false},
		{"an unknown one goes", func() { n.remove("d") }, []string{"a", "b", "c"}, []string{"x"}, false},
		{"that one goes", func() { n.remove("a") }, []string{"b", "c"}, []string{"x"}, true},
		{"all go", func() { n.remove("b"); n.remove("c") }, nil, nil, true},
	} {
		step.does()
		if !slices.Equal(n.NodeIDs(), step.order) || !slices.Equal(n.Datacenters(), step.dcs) || n.EveryNodeMeets(inRackOne) != step.meet {
			t.Errorf("%s: %q in %q, all in the rack: %v", step.name, n.NodeIDs(), n.Datacenters(), n.EveryNodeMeets(inRackOne))
		}
	}
}
