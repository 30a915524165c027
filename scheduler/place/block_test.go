package place

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
)

// groups is a node with two GPUs in ten slices, one that is shared by four, and two whole ones.
func groups() Node {
	n := Node{ID: "n", CPUMHz: 1000, MemoryMiB: 1000}
	add := func(id string, mode gpu.Mode, slices, replicas int64, d *constraint.Device) {
		g := GPU{ID: id, Vendor: "nvidia", Model: "T4", Type: "T4", Mode: mode, MemoryMiB: 10240, Slices: slices, Replicas: replicas, Device: d, MeasuredMilli: Unmeasured, MeasuredMemoryMiB: Unmeasured}
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

// What Nomad would find room for on a node, block by block.
func TestServes(t *testing.T) {
	slice := func(count, milli int64) Block { return Block{Device: "nvidia/slice", Count: count, Milli: milli} }
	block := func(name string, count int64) Block { return Block{Device: name, Count: count} }
	for name, c := range map[string]struct {
		held  []Take
		alloc Blocks
		want  bool
	}{
		"all CPU and memory":                       {nil, Blocks{CPUMHz: 1000, MemoryMiB: 1000}, true},
		"more CPU":                                 {nil, Blocks{CPUMHz: 1001}, false},
		"more memory":                              {nil, Blocks{MemoryMiB: 1001}, false},
		"all slices of a GPU":                      {nil, Blocks{Devices: []Block{slice(10, 0)}}, true},
		"more slices than a GPU has":               {nil, Blocks{Devices: []Block{slice(11, 0)}}, false},
		"all slices of two GPUs":                   {nil, Blocks{Devices: []Block{slice(10, 0), slice(10, 0)}}, true},
		"of three":                                 {nil, Blocks{Devices: []Block{slice(10, 0), slice(10, 0), slice(1, 0)}}, false},
		"slices beside others":                     {[]Take{{GPU: 0, Milli: 400, Slices: 4}, {GPU: 1, Milli: 1000, Slices: 10}}, Blocks{Devices: []Block{slice(6, 0)}}, true},
		"more than is left":                        {[]Take{{GPU: 0, Milli: 400, Slices: 4}, {GPU: 1, Milli: 1000, Slices: 10}}, Blocks{Devices: []Block{slice(7, 0)}}, false},
		"slices without the compute that goes":     {[]Take{{GPU: 0, Milli: 500, Slices: 1}, {GPU: 1, Milli: 1000, Slices: 10}}, Blocks{Devices: []Block{slice(6, 0)}}, false},
		"slices with little compute":               {[]Take{{GPU: 0, Milli: 500, Slices: 1}, {GPU: 1, Milli: 1000, Slices: 10}}, Blocks{Devices: []Block{slice(6, 500)}}, true},
		"slices with more compute":                 {[]Take{{GPU: 0, Milli: 500, Slices: 1}, {GPU: 1, Milli: 1000, Slices: 10}}, Blocks{Devices: []Block{slice(6, 501)}}, false},
		"compute that went with an earlier block":  {[]Take{{GPU: 1, Milli: 1000, Slices: 10}}, Blocks{Devices: []Block{slice(4, 0), slice(4, 700)}}, false},
		"compute that it left":                     {[]Take{{GPU: 1, Milli: 1000, Slices: 10}}, Blocks{Devices: []Block{slice(4, 0), slice(4, 600)}}, true},
		"compute that an earlier block asked for":  {[]Take{{GPU: 1, Milli: 1000, Slices: 10}}, Blocks{Devices: []Block{slice(1, 700), slice(4, 0)}}, false},
		"the group that has the least left":        {[]Take{{GPU: 0, Milli: 500, Slices: 5}}, Blocks{Devices: []Block{slice(5, 0), slice(10, 0)}}, true},
		"all turns":                                {nil, Blocks{Devices: []Block{block("nvidia/shared", 4)}}, true},
		"more turns":                               {nil, Blocks{Devices: []Block{block("nvidia/shared", 3), block("shared", 2)}}, false},
		"both whole GPUs":                          {nil, Blocks{Devices: []Block{block("gpu", 2)}}, true},
		"both, one by one":                         {nil, Blocks{Devices: []Block{block("gpu", 1), block("nvidia/gpu/T4", 1)}}, true},
		"three":                                    {nil, Blocks{Devices: []Block{block("gpu", 3)}}, false},
		"a whole GPU in use":                       {[]Take{{GPU: 3, Milli: 1000}}, Blocks{Devices: []Block{block("gpu", 2)}}, false},
		"the other":                                {[]Take{{GPU: 3, Milli: 1000}}, Blocks{Devices: []Block{block("gpu", 1)}}, true},
		"another vendor's":                         {nil, Blocks{Devices: []Block{block("amd/gpu", 1)}}, false},
		"an alternative":                           {nil, Blocks{Devices: []Block{{Device: "amd/gpu", Count: 1, Or: []Block{block("gpu", 3), block("gpu", 2)}}}}, true},
		"no alternative":                           {nil, Blocks{Devices: []Block{{Device: "amd/gpu", Count: 1, Or: []Block{block("gpu", 3)}}}}, false},
		"an alternative that an earlier block has": {nil, Blocks{Devices: []Block{block("gpu", 1), {Device: "amd/gpu", Count: 1, Or: []Block{block("gpu", 2)}}}}, false},
	} {
		s := NewSnapshot()
		if err := s.AddNode(groups()); err != nil {
			t.Fatal(err)
		}
		if len(c.held) > 0 {
			if err := s.Apply(Usage{ID: "held", NodeID: "n", Takes: c.held}); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.Serves("n", &c.alloc, nil); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if c.want && !s.Serves("n", &c.alloc, Everything) {
			t.Errorf("%s: not on the empty node", name)
		}
	}
}

// What is missing is said as the request says it.
func TestReasonsSayWhatIsMissing(t *testing.T) {
	for text, want := range map[string]string{
		"1": "no GPU with nothing on it", "2": "no GPU with nothing on it, and 2 are needed on one node", "0.5": "no GPU with 0.5 of the compute free",
		"8G": "no GPU with 8 GiB free", "8G,0.5": "no GPU with 8 GiB and 0.5 of the compute free", "500M": "no GPU with 500 MiB free",
	} {
		p := testPlanner(t, testNode("a", "A100", 2))
		for i := range 2 {
			held(t, p.snap, string(rune('a'+i)), "a", i, 1000, 10)
		}
		r := ask(t, "r", text)
		e, err := p.Explain(&r, noon)
		if err != nil || len(e.Reasons) != 1 || e.Reasons[0].Why != want {
			t.Errorf("%s: %+v, %v; want %q", text, e.Reasons, err, want)
		}
	}
}
