// SPDX-License-Identifier: MPL-2.0

package cluster_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// Names of models mean the short type, the NVML name, and that as a label, in any case.
func TestModelNames(t *testing.T) {
	g := cluster.GPU{Model: "NVIDIA A100-PCIE-40GB", Type: "A100"}
	for name, want := range map[string]bool{
		"A100": true, "a100": true, "NVIDIA A100-PCIE-40GB": true, "nvidia-a100-pcie-40gb": true,
		"A10": false, "NVIDIA": false, "": false, "H100": false,
	} {
		if g.Is(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

// What is wrong with a node is said.
func TestNodesAreValidated(t *testing.T) {
	for says, change := range map[string]func(n *cluster.Node){
		"no ID":                       func(n *cluster.Node) { n.ID = "" },
		"negative CPU or memory":      func(n *cluster.Node) { n.MemoryMiB = -1 },
		"GPUs, at most":               func(n *cluster.Node) { n.GPUs = slices.Repeat(n.GPUs[:1], cluster.MaxGPUs+1) },
		"GPU 0: no ID":                func(n *cluster.Node) { n.GPUs[0].ID = "" },
		"is listed twice":             func(n *cluster.Node) { n.GPUs[1].ID = n.GPUs[0].ID },
		`mode "shard"`:                func(n *cluster.Node) { n.GPUs[0].Mode = "shard" },
		"negative memory, slices":     func(n *cluster.Node) { n.GPUs[0].MemoryMiB = -1 },
		"mode slice with 0 slices":    func(n *cluster.Node) { n.GPUs[0].Slices = 0 },
		"mode slice with 80 slices":   func(n *cluster.Node) { n.GPUs[0].SliceMiB = 0 },
		"mode whole with 80 slices":   func(n *cluster.Node) { n.GPUs[0].Mode = "whole" },
		"mode shared with 0 replicas": func(n *cluster.Node) { g := &n.GPUs[0]; g.Mode, g.Slices, g.SliceMiB = "shared", 0, 0 },
		"beyond what is expected":     func(n *cluster.Node) { n.GPUs[0].SurplusMilli = -1 },
		"slices or replicas":          func(n *cluster.Node) { n.GPUs[0].Slices = cluster.MaxSlices + 1 },
		"peer 2 is not on the node":   func(n *cluster.Node) { n.GPUs[0].Peers = []int{1, 2} },
		"peer -1 is not on the node":  func(n *cluster.Node) { n.GPUs[0].Peers = []int{-1} },
	} {
		n := placetest.Node("a", "A100", 2)
		change(&n)
		if err := n.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	n := placetest.Node("a", "A100", 2)
	n.GPUs[0].Peers = []int{0, 1}
	if err := n.Validate(); err != nil {
		t.Error(err)
	}
}
