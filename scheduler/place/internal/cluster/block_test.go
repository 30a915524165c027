// SPDX-License-Identifier: MPL-2.0

package cluster_test

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// What Nomad would find room for on a node, block by block.
func TestServes(t *testing.T) {
	slice := func(count, milli int64) cluster.Block {
		return cluster.Block{Device: "nvidia/slice", Count: count, Milli: milli}
	}
	block := func(name string, count int64) cluster.Block { return cluster.Block{Device: name, Count: count} }
	for name, c := range map[string]struct {
		held  []cluster.Take
		alloc cluster.Blocks
		want  bool
	}{
		"all CPU and memory":                       {nil, cluster.Blocks{CPUMHz: 1000, MemoryMiB: 1000}, true},
		"more CPU":                                 {nil, cluster.Blocks{CPUMHz: 1001}, false},
		"more memory":                              {nil, cluster.Blocks{MemoryMiB: 1001}, false},
		"all slices of a GPU":                      {nil, cluster.Blocks{Devices: []cluster.Block{slice(10, 0)}}, true},
		"more slices than a GPU has":               {nil, cluster.Blocks{Devices: []cluster.Block{slice(11, 0)}}, false},
		"all slices of two GPUs":                   {nil, cluster.Blocks{Devices: []cluster.Block{slice(10, 0), slice(10, 0)}}, true},
		"of three":                                 {nil, cluster.Blocks{Devices: []cluster.Block{slice(10, 0), slice(10, 0), slice(1, 0)}}, false},
		"slices beside others":                     {[]cluster.Take{{GPU: 0, Milli: 400, Slices: 4}, {GPU: 1, Milli: 1000, Slices: 10}}, cluster.Blocks{Devices: []cluster.Block{slice(6, 0)}}, true},
		"more than is left":                        {[]cluster.Take{{GPU: 0, Milli: 400, Slices: 4}, {GPU: 1, Milli: 1000, Slices: 10}}, cluster.Blocks{Devices: []cluster.Block{slice(7, 0)}}, false},
		"slices without the compute that goes":     {[]cluster.Take{{GPU: 0, Milli: 500, Slices: 1}, {GPU: 1, Milli: 1000, Slices: 10}}, cluster.Blocks{Devices: []cluster.Block{slice(6, 0)}}, false},
		"slices with little compute":               {[]cluster.Take{{GPU: 0, Milli: 500, Slices: 1}, {GPU: 1, Milli: 1000, Slices: 10}}, cluster.Blocks{Devices: []cluster.Block{slice(6, 500)}}, true},
		"slices with more compute":                 {[]cluster.Take{{GPU: 0, Milli: 500, Slices: 1}, {GPU: 1, Milli: 1000, Slices: 10}}, cluster.Blocks{Devices: []cluster.Block{slice(6, 501)}}, false},
		"compute that went with an earlier block":  {[]cluster.Take{{GPU: 1, Milli: 1000, Slices: 10}}, cluster.Blocks{Devices: []cluster.Block{slice(4, 0), slice(4, 700)}}, false},
		"compute that it left":                     {[]cluster.Take{{GPU: 1, Milli: 1000, Slices: 10}}, cluster.Blocks{Devices: []cluster.Block{slice(4, 0), slice(4, 600)}}, true},
		"compute that an earlier block asked for":  {[]cluster.Take{{GPU: 1, Milli: 1000, Slices: 10}}, cluster.Blocks{Devices: []cluster.Block{slice(1, 700), slice(4, 0)}}, false},
		"the group that has the least left":        {[]cluster.Take{{GPU: 0, Milli: 500, Slices: 5}}, cluster.Blocks{Devices: []cluster.Block{slice(5, 0), slice(10, 0)}}, true},
		"all turns":                                {nil, cluster.Blocks{Devices: []cluster.Block{block("nvidia/shared", 4)}}, true},
		"more turns":                               {nil, cluster.Blocks{Devices: []cluster.Block{block("nvidia/shared", 3), block("shared", 2)}}, false},
		"both whole GPUs":                          {nil, cluster.Blocks{Devices: []cluster.Block{block("gpu", 2)}}, true},
		"both, one by one":                         {nil, cluster.Blocks{Devices: []cluster.Block{block("gpu", 1), block("nvidia/gpu/T4", 1)}}, true},
		"three":                                    {nil, cluster.Blocks{Devices: []cluster.Block{block("gpu", 3)}}, false},
		"a whole GPU in use":                       {[]cluster.Take{{GPU: 3, Milli: 1000}}, cluster.Blocks{Devices: []cluster.Block{block("gpu", 2)}}, false},
		"the other":                                {[]cluster.Take{{GPU: 3, Milli: 1000}}, cluster.Blocks{Devices: []cluster.Block{block("gpu", 1)}}, true},
		"another vendor's":                         {nil, cluster.Blocks{Devices: []cluster.Block{block("amd/gpu", 1)}}, false},
		"an alternative":                           {nil, cluster.Blocks{Devices: []cluster.Block{{Device: "amd/gpu", Count: 1, Or: []cluster.Block{block("gpu", 3), block("gpu", 2)}}}}, true},
		"no alternative":                           {nil, cluster.Blocks{Devices: []cluster.Block{{Device: "amd/gpu", Count: 1, Or: []cluster.Block{block("gpu", 3)}}}}, false},
		"an alternative that an earlier block has": {nil, cluster.Blocks{Devices: []cluster.Block{block("gpu", 1), {Device: "amd/gpu", Count: 1, Or: []cluster.Block{block("gpu", 2)}}}}, false},
	} {
		s := cluster.NewSnapshot()
		if err := s.AddNode(groups()); err != nil {
			t.Fatal(err)
		}
		if len(c.held) > 0 {
			if err := s.Apply(cluster.Usage{ID: "held", NodeID: "n", Takes: c.held}); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.Serves("n", &c.alloc, nil); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if c.want && !s.Serves("n", &c.alloc, func(*cluster.Usage) bool { return true }) {
			t.Errorf("%s: not on the empty node", name)
		}
	}
}

// groups is a node with two GPUs in ten slices, one that is shared by four, and two whole ones.
func groups() cluster.Node {
	n := cluster.Node{ID: "n", CPUMHz: 1000, MemoryMiB: 1000}
	add := func(id string, mode gpu.Mode, slices, replicas int64, d *constraint.Device) {
		g := cluster.GPU{ID: id, Vendor: "nvidia", Model: "T4", Type: "T4", Mode: mode, MemoryMiB: 10240, Slices: slices, Replicas: replicas, Device: d, MeasuredMilli: cluster.Unmeasured, MeasuredMemoryMiB: cluster.Unmeasured}
		if slices > 0 {
			g.SliceMiB = 1024
		}
		n.GPUs = append(n.GPUs, g)
	}
	add("s0", gpu.ModeSlice, 10, 0, &constraint.Device{Vendor: "nvidia", Type: "slice", Name: "T4/0"})
	add("s1", gpu.ModeSlice, 10, 0, &constraint.Device{Vendor: "nvidia", Type: "slice", Name: "T4/1"})
	add("t", gpu.ModeShared, 0, 4, &constraint.Device{Vendor: "nvidia", Type: "shared", Name: "T4/0"})
	whole := &constraint.Device{Vendor: "nvidia", Type: "gpu", Name: "T4"}
	add("w0", gpu.ModeWhole, 0, 0, whole)
	add("w1", gpu.ModeWhole, 0, 0, whole)
	return n
}
