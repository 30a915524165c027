// SPDX-License-Identifier: MPL-2.0

// Package placetest makes what the tests of placement, and of the packages below it, start
// from.
package placetest

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// GPU is a sliced 80 GiB card.
func GPU(id, model string) cluster.GPU {
	return cluster.GPU{
		ID: id, Vendor: "nvidia", Model: "NVIDIA " + model + "-PCIE", Type: model, Mode: gpu.ModeSlice,
		Sharing: gpu.SharingMPS, MemoryMiB: 81920, SliceMiB: 1024, Slices: 80,
		MeasuredMilli: cluster.Unmeasured, MeasuredMemoryMiB: cluster.Unmeasured,
	}
}

// Node has count equal GPUs.
func Node(id, model string, count int) cluster.Node {
	n := cluster.Node{ID: id, Name: id, CPUMHz: 64000, MemoryMiB: 262144}
	for i := range count {
		n.GPUs = append(n.GPUs, GPU(fmt.Sprintf("%s-gpu%d", id, i), model))
	}
	return n
}

// Ask builds a request from the grammar that users write.
func Ask(id, text string) (fit.Request, error) {
	g, err := gpu.ParseRequest(text)
	r := fit.Request{ID: id, CPUMHz: 1000, MemoryMiB: 1024}
	r.Ask(g)
	return r, err
}
