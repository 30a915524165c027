// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// ofEach is a node with two sliced GPUs, two shared ones whose tasks step aside for each other and two whole
// ones, in this order: three pools.
func ofEach(id string) cluster.Node {
	n := cluster.Node{ID: id, Datacenter: "dc1", Pool: "gpu", CPUMHz: 10_000, MemoryMiB: 20_000}
	for i := range 6 {
		n.GPUs = append(n.GPUs, cluster.GPU{ID: fmt.Sprint(id, "-", i), Vendor: "nvidia", Type: "T4", Model: "Tesla T4", Mode: gpu.ModeWhole, MemoryMiB: 15_900, MeasuredMilli: cluster.Unmeasured, MeasuredMemoryMiB: cluster.Unmeasured, NUMA: -1})
	}
	for i := range 2 {
		g := &n.GPUs[i]
		g.Mode, g.Slices, g.SliceMiB, g.Sharing = gpu.ModeSlice, 15, 1024, gpu.SharingMPS
		g = &n.GPUs[2+i]
		g.Mode, g.Replicas, g.Sharing, g.SeatPriority = gpu.ModeShared, 4, gpu.SharingSuspend, 80
	}
	return n
}

func clusterOf(t *testing.T, nodes ...cluster.Node) *cluster.Snapshot {
	t.Helper()
	s := cluster.NewSnapshot()
	for _, n := range nodes {
		if err := s.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func mustApply(t *testing.T, s *cluster.Snapshot, list ...cluster.Usage) {
	t.Helper()
	for _, u := range list {
		if err := s.Apply(u); err != nil {
			t.Fatal(err)
		}
	}
}

// What contradicts itself is said, and what is at a limit does not.
func TestFaultsOfRequests(t *testing.T) {
	for _, c := range []struct {
		r    Request
		says string
	}{
		{Request{}, ""},
		{Request{CPUMHz: 1, MemoryMiB: 1, GPUs: 1, MemoryMiBPerGPU: 1, MinMemoryMiB: 1}, ""},
		{Request{CPUMHz: -1}, "negative CPU"}, {Request{MemoryMiB: -1}, "negative CPU"}, {Request{GPUs: 1, MemoryMiBPerGPU: -1}, "negative CPU"}, {Request{GPUs: 1, Whole: true, MinMemoryMiB: -1}, "negative CPU"},
		{Request{GPUs: -1}, "-1 GPUs"}, {Request{GPUs: cluster.MaxGPUs, Whole: true}, ""}, {Request{GPUs: cluster.MaxGPUs + 1, Whole: true}, "no more than"},
		{Request{Whole: true}, "zero GPUs"}, {Request{Shared: true}, "zero GPUs"}, {Request{ShareMilli: 1}, "zero GPUs"}, {Request{MemoryMiBPerGPU: 1}, "zero GPUs"},
		{Request{GPUs: 1, Whole: true}, ""}, {Request{GPUs: 1, Whole: true, Shared: true}, "a whole GPU"}, {Request{GPUs: 1, Whole: true, ShareMilli: 1}, "a whole GPU"}, {Request{GPUs: 1, Whole: true, MemoryMiBPerGPU: 1}, "a whole GPU"},
		{Request{GPUs: 1, Shared: true}, ""}, {Request{GPUs: 1, Shared: true, ShareMilli: 1}, "a turn"}, {Request{GPUs: 1, Shared: true, MemoryMiBPerGPU: 1}, "a turn"},
		{Request{GPUs: 1}, "without whole"}, {Request{GPUs: 1, Instances: 1}, ""},
		{Request{GPUs: 1, ShareMilli: 1}, ""}, {Request{GPUs: 1, ShareMilli: 999}, ""}, {Request{GPUs: 1, ShareMilli: 1000}, "share 1000"}, {Request{GPUs: 1, ShareMilli: -1}, "share -1"},
		{Request{Expected: 1000}, ""}, {Request{Expected: -1}, "expected use -1"}, {Request{Expected: 1001}, "expected use 1001"},
		{Request{GPUs: 1, Shared: true, Instances: -1}, "-1 instances"}, {Request{GPUs: 1, Whole: true, Instances: 1}, "1 instances"}, {Request{GPUs: 1, Shared: true, Instances: 1}, ""},
		{Request{Constraints: []constraint.Constraint{{Operand: "="}}}, ""}, {Request{Constraints: []constraint.Constraint{{Operand: "~"}}}, `"~"`}, {Request{Conditions: []constraint.Constraint{{Operand: "~"}}}, `"~"`},
	} {
		got, err := c.r.Fault(), c.r.Validate()
		if c.says == "" && got != "" || !strings.Contains(got, c.says) || (err != nil) != (c.says != "") || err != nil && !errors.Is(err, ErrRequest) {
			t.Errorf("%+v: %q, %v, want %q", c.r, got, err, c.says)
		}
	}
}

// Requests are told apart by all that matters to where they fit, and by nothing else.
func TestKeysOfShapes(t *testing.T) {
	base := Request{GPUs: 1, ShareMilli: 500}
	list := func(c ...constraint.Constraint) []constraint.Constraint { return c }
	keys := map[ShapeKey]string{KeyOf(&base): "the base"}
	for name, change := range map[string]func(r *Request){
		"cpu": func(r *Request) { r.CPUMHz = 1 }, "memory": func(r *Request) { r.MemoryMiB = 1 }, "gpus": func(r *Request) { r.GPUs = 2 },
		"whole": func(r *Request) { r.Whole = true }, "shared": func(r *Request) { r.Shared = true }, "close": func(r *Request) { r.Close = true }, "cover": func(r *Request) { r.Cover = true },
		"expected": func(r *Request) { r.Expected = 501 }, "share": func(r *Request) { r.ShareMilli = 499 }, "GPU memory": func(r *Request) { r.MemoryMiBPerGPU = 1 }, "min memory": func(r *Request) { r.MinMemoryMiB = 1 },
		"vendor": func(r *Request) { r.Vendor = "a" }, "model": func(r *Request) { r.Models = []string{"a"} }, "two models": func(r *Request) { r.Models = []string{"a", "b"} }, "not": func(r *Request) { r.Not = []string{"a"} },
		"a model that looks like two": func(r *Request) { r.Models = []string{"a1:b"} }, "an empty model": func(r *Request) { r.Models = []string{""} }, "two models, one long": func(r *Request) { r.Models = []string{"a", "11:bbbbbbbbbbb"} }, "one that begins with a number": func(r *Request) { r.Models = []string{"9bbbbbbbbb"} }, "two, of which the first is a number": func(r *Request) { r.Models = []string{"0", "bbbbbbbbb"} },
		"two models, one with a number": func(r *Request) { r.Models = []string{"a", "1", "bbbbbbbbbbb"} },
		"profile":                       func(r *Request) { r.Profile = "a" }, "sharing": func(r *Request) { r.Sharing = "a" }, "mode": func(r *Request) { r.Mode = "a" },
		"datacenter": func(r *Request) { r.Datacenters = []string{"a"} }, "pool": func(r *Request) { r.Pools = []string{"a"} }, "node": func(r *Request) { r.Nodes = []string{"a"} },
		"a constraint": func(r *Request) { r.Constraints = list(constraint.Constraint{Left: "a", Operand: "=", Right: "b"}) }, "another": func(r *Request) { r.Constraints = list(constraint.Constraint{Left: "b", Operand: "=", Right: "a"}) },
		"an operand": func(r *Request) { r.Constraints = list(constraint.Constraint{Left: "a", Operand: "!=", Right: "b"}) }, "an empty constraint": func(r *Request) { r.Constraints = list(constraint.Constraint{}) },
		"a condition": func(r *Request) { r.Conditions = list(constraint.Constraint{Left: "a", Operand: "=", Right: "b"}) }, "a device": func(r *Request) { r.Device = "a" }, "instances": func(r *Request) { r.Instances = 1 },
		"most": func(r *Request) { r.Most = quota.Charge{Milli: 1} }, "policy": func(r *Request) { r.Policy = PolicyPack }, "beside": func(r *Request) { r.Beside = BesideNone },
		"beside lower": func(r *Request) { r.Beside = BesideLower }, "beside lower, firmly": func(r *Request) { r.Beside, r.SeatPriority = BesideLower, 7 },
	} {
		r := base
		change(&r)
		if other, same := keys[KeyOf(&r)]; same {
			t.Errorf("%s is as %s", name, other)
		}
		keys[KeyOf(&r)] = name
	}
	for name, change := range map[string]func(r *Request){
		"ID": func(r *Request) { r.ID = "a" }, "job": func(r *Request) { r.Job, r.Namespace = "a", "b" }, "queue": func(r *Request) { r.Queue = "a" }, "priority": func(r *Request) { r.Priority = 1 },
		"less than is guaranteed": func(r *Request) { r.Expected = 500 }, "a seat's priority": func(r *Request) { r.SeatPriority = 7 },
	} {
		r := base
		change(&r)
		if KeyOf(&r) != KeyOf(&base) {
			t.Errorf("%s makes another shape", name)
		}
	}
	whole, used := Request{GPUs: 1, Whole: true}, Request{GPUs: 1, Whole: true, Expected: 900}
	if KeyOf(&whole) != KeyOf(&used) {
		t.Error("what is expected of a whole GPU makes another shape")
	}
}

// What a request takes of a GPU of each kind, or why it never can.
func TestNeedsOfKinds(t *testing.T) {
	s := clusterOf(t, ofEach("n"))
	type take = cluster.Take
	half := Request{GPUs: 1, ShareMilli: 500}
	with := func(r Request, change func(r *Request)) Request { change(&r); return r }
	whole, turn := Request{GPUs: 1, Whole: true}, Request{GPUs: 1, Shared: true}
	for i, c := range []struct {
		r    Request
		kind int32
		want Need
	}{
		{half, 0, Need{OK: true, Take: take{Milli: 500, Slices: 7}, Share: 500, Use: 500, least: 466}},
		{Request{GPUs: 1, ShareMilli: 1}, 0, Need{OK: true, Take: take{Milli: 1, Slices: 1}, Share: 67, Use: 1, least: 1}},
		{Request{GPUs: 1, MemoryMiBPerGPU: 2048}, 0, Need{OK: true, Take: take{Milli: 133, Slices: 2}, Share: 134, Use: 133, least: 133}},
		{Request{GPUs: 1, MemoryMiBPerGPU: 2049}, 0, Need{OK: true, Take: take{Milli: 200, Slices: 3}, Share: 200, Use: 200, least: 200}},
		{Request{GPUs: 1, MemoryMiBPerGPU: 16_384}, 0, Need{OK: true, Take: take{Milli: 1000, Slices: 15}, Share: 1000, Use: 1000, least: 1000}}, // the size that it is sold as
		// As T4 and others with ECC report it.
		{Request{GPUs: 1, MemoryMiBPerGPU: 16_385}, 0, Need{why: "GPU memory too small"}},
		{Request{GPUs: 1, MemoryMiBPerGPU: 1024, ShareMilli: 600}, 0, Need{OK: true, Take: take{Milli: 600, Slices: 1}, Share: 600, Use: 600, least: 66}},
		{Request{GPUs: 1, MemoryMiBPerGPU: 1024, ShareMilli: 600, Cover: true}, 0, Need{OK: true, Take: take{Milli: 600, Slices: 9}, Share: 600, Use: 600, least: 600}},
		{Request{GPUs: 1, Instances: 15}, 0, Need{OK: true, Take: take{Milli: 1000, Slices: 15}, Share: 1000, Use: 1000, least: 1000}},
		{Request{GPUs: 1, Instances: 16}, 0, Need{why: "GPU memory too small"}},
		{Request{GPUs: 1, Instances: 1, MemoryMiBPerGPU: 4096}, 0, Need{OK: true, Take: take{Milli: 66, Slices: 1}, Share: 67, Use: 66, least: 66}},
		{with(half, func(r *Request) { r.Expected = 700 }), 0, Need{OK: true, Take: take{Milli: 500, Slices: 7, Expected: 700}, Share: 500, Use: 700, least: 466}},
		{with(half, func(r *Request) { r.Expected = 500 }), 0, Need{OK: true, Take: take{Milli: 500, Slices: 7}, Share: 500, Use: 500, least: 466}},
		{half, 1, Need{why: "GPUs in mode shared"}},
		{half, 2, Need{why: "GPUs not sliced"}},
		{whole, 0, Need{OK: true, Whole: true, Take: take{Milli: 1000, Slices: 15}, Share: 1000, Use: 1000, least: 1000}},
		{whole, 1, Need{why: "GPUs in mode shared"}},
		{whole, 2, Need{OK: true, Whole: true, Take: take{Milli: 1000}, Share: 1000, Use: 1000, least: 1000}},
		{with(whole, func(r *Request) { r.MinMemoryMiB = 15_900 }), 2, Need{OK: true, Whole: true, Take: take{Milli: 1000}, Share: 1000, Use: 1000, least: 1000}},
		{with(whole, func(r *Request) { r.MinMemoryMiB = 15_901 }), 2, Need{why: "GPU memory too small"}},
		{turn, 0, Need{why: "GPUs in mode slice"}},
		{turn, 1, Need{OK: true, Take: take{Replicas: 1}, Share: 250, Use: 250, least: 250}},
		{with(turn, func(r *Request) { r.Instances = 4 }), 1, Need{OK: true, Take: take{Replicas: 4}, Share: 1000, Use: 1000, least: 1000}},
		{with(turn, func(r *Request) { r.Instances = 5 }), 1, Need{why: "fewer turns", Use: 0}},
		{with(turn, func(r *Request) { r.MinMemoryMiB = 16_384 }), 1, Need{OK: true, Take: take{Replicas: 1}, Share: 250, Use: 250, least: 250}},
		{with(turn, func(r *Request) { r.MinMemoryMiB = 16_385 }), 1, Need{why: "GPU memory too small"}},
		{with(half, func(r *Request) { r.Vendor = "NVIDIA" }), 0, Need{OK: true, Take: take{Milli: 500, Slices: 7}, Share: 500, Use: 500, least: 466}},
		{with(half, func(r *Request) { r.Vendor = "amd" }), 0, Need{why: "other vendor"}},
		{with(half, func(r *Request) { r.Models = []string{"A100", "H100"} }), 0, Need{why: "other model than A100 or H100"}},
		{with(half, func(r *Request) { r.Models = []string{"A100", "t4"} }), 0, Need{OK: true, Take: take{Milli: 500, Slices: 7}, Share: 500, Use: 500, least: 466}},
		{with(half, func(r *Request) { r.Not = []string{"A100", "T4"} }), 0, Need{why: "model T4, which is excluded"}},
		{with(half, func(r *Request) { r.Profile = "1g" }), 0, Need{why: "other MIG profile"}},
		{with(half, func(r *Request) { r.Profile, r.Device = "1g", "gpu" }), 0, Need{OK: true, Take: take{Milli: 500, Slices: 7}, Share: 500, Use: 500, least: 466}},
		{with(half, func(r *Request) { r.Sharing = gpu.SharingMPS }), 0, Need{OK: true, Take: take{Milli: 500, Slices: 7}, Share: 500, Use: 500, least: 466}},
		{with(half, func(r *Request) { r.Sharing = gpu.SharingSuspend }), 0, Need{why: "other sharing"}},
		{with(whole, func(r *Request) { r.Mode = gpu.ModeWhole }), 0, Need{why: "GPUs in mode slice"}},
		{with(half, func(r *Request) { r.Most = quota.Charge{Milli: 500} }), 0, Need{OK: true, Take: take{Milli: 500, Slices: 7}, Share: 500, Use: 500, least: 466}},
		{with(half, func(r *Request) { r.Most = quota.Charge{Milli: 499} }), 0, Need{why: "its queue may not hold as much more as this GPU costs"}},
	} {
		if got := needOf(&c.r, &s.Kinds[c.kind]); got != c.want {
			t.Errorf("%d: %+v: %+v, want %+v", i, c.r, got, c.want)
		}
	}
	for _, c := range []struct {
		r               Request
		kind            int32
		compute, memory int32
		milli, least    int64
	}{{half, 0, 500, 467, 500, 500}, {Request{GPUs: 2, MemoryMiBPerGPU: 2048}, 0, 133, 134, 0, 266}, {whole, 0, 1000, 1000, 1000, 1000}, {whole, 2, 1000, 1000, 1000, 1000}, {turn, 1, 250, 250, 0, 250}, {Request{}, 0, 0, 0, 0, 0}} {
		sh := NewShape(&c.r, s)
		if c.r.GPUs > 0 {
			if compute, memory := sh.Need(s, c.kind).parts(&s.Kinds[c.kind]); compute != c.compute || memory != c.memory {
				t.Errorf("%+v: parts %d and %d, want %d and %d", c.r, compute, memory, c.compute, c.memory)
			}
			if got := sh.LeastCharge(s).Milli; got != c.least {
				t.Errorf("%+v costs at least %d, want %d", c.r, got, c.least)
			}
		}
		if got := c.r.Milli(); got != c.milli {
			t.Errorf("%+v asks for %d", c.r, got)
		}
	}
	if got := NewShape(&whole, s).LeastCharge(s); got != (quota.Charge{Milli: 1000, MemoryMiB: 15 * 1024}) {
		t.Errorf("a whole GPU costs at least %+v", got)
	}
	for _, c := range []struct {
		r    Request
		want int64
	}{{Request{GPUs: 2, MemoryMiBPerGPU: 2048}, 268}, {turn, 250}, {Request{GPUs: 3, Shared: true, Instances: 9}, 3}, {half, 500}, {whole, 1000}, {Request{}, 0}} {
		if got := NewShape(&c.r, s).Demand.Milli; got != c.want {
			t.Errorf("%+v is demand for %d, want %d", c.r, got, c.want)
		}
	}
}

// A node of several kinds of GPU speaks of the kind that is asked for, wherever that stands.
func TestARefusalIsOfTheKindThatIsAskedFor(t *testing.T) {
	s := clusterOf(t, ofEach("n"))
	sh := NewShape(&Request{GPUs: 1, Mode: gpu.ModeSlice, Instances: 10_000}, s)
	for range s.Nodes["n"].Pools {
		n := *s.Nodes["n"]
		n.Pools = append(slices.Clone(n.Pools[1:]), n.Pools[0])
		s.Nodes["n"] = &n
		if got := sh.Refusal(s, &n); got.Why != "GPU memory too small" || !got.Never {
			t.Errorf("%+v", got)
		}
	}
}

// Why a pool cannot take a task, now or ever, and what its node says of it.
func TestVerdicts(t *testing.T) {
	drains := ofEach("drains")
	drains.Ineligible = true
	slices := ofEach("slices")
	slices.GPUs = slices.GPUs[:2]
	slices.Attributes = map[string]string{"attr.arch": "arm64"}
	s := clusterOf(t, ofEach("n"), drains, cluster.Node{ID: "cpu", CPUMHz: 10_000, MemoryMiB: 20_000}, slices)
	mustApply(t, s, cluster.Usage{ID: "u", NodeID: "n", CPUMHz: 4000, MemoryMiB: 8000, Takes: []cluster.Take{{GPU: 0, Milli: 600, Slices: 9}, {GPU: 2, Replicas: 4}, {GPU: 4, Milli: 1000}}})
	half := Request{GPUs: 1, ShareMilli: 500, CPUMHz: 6000, MemoryMiB: 12_000}
	with := func(change func(r *Request)) Request { r := half; change(&r); return r }
	for _, c := range []struct {
		name  string
		r     Request
		node  string
		pool  int
		fit   Verdict
		could bool
		says  string
		never bool
	}{
		{"it fits", half, "n", 0, Fits, true, "", false},
		{"more CPU", with(func(r *Request) { r.CPUMHz++ }), "n", 0, noCPU, true, "less than 6001 MHz of CPU free", false},
		{"more CPU than there is", with(func(r *Request) { r.CPUMHz = 10_001 }), "n", 0, noCPU, false, "less than 10001 MHz of CPU", true},
		{"all CPU that there is", with(func(r *Request) { r.CPUMHz = 10_000 }), "n", 0, noCPU, true, "less than 10000 MHz of CPU free", false},
		{"more memory", with(func(r *Request) { r.MemoryMiB++ }), "n", 0, noMemory, true, "less than 11.72 GiB of memory free", false},
		{"more memory than there is", with(func(r *Request) { r.MemoryMiB = 20_480 }), "n", 0, noMemory, false, "less than 20 GiB of memory", true},
		{"all memory that there is", with(func(r *Request) { r.MemoryMiB = 20_000 }), "n", 0, noMemory, true, "less than 19.531 GiB of memory free", false},
		{"a node that drains", half, "drains", 0, notEligible, false, "not eligible for new work", false},
		{"another datacenter", with(func(r *Request) { r.Datacenters = []string{"dc2"} }), "n", 0, notFiltered, false, "constraint, datacenter or node pool", true},
		{"its datacenter", with(func(r *Request) { r.Datacenters = []string{"dc2", "dc1"} }), "n", 0, Fits, true, "", false},
		{"another pool", with(func(r *Request) { r.Pools = []string{"cpu"} }), "n", 0, notFiltered, false, "constraint, datacenter or node pool", true},
		{"its pool", with(func(r *Request) { r.Pools = []string{"gpu"} }), "n", 0, Fits, true, "", false},
		{"another node", with(func(r *Request) { r.Nodes = []string{"slices"} }), "n", 0, notFiltered, false, "constraint, datacenter or node pool", true},
		{"this node", with(func(r *Request) { r.Nodes = []string{"slices"} }), "slices", 0, Fits, true, "", false},
		{"a constraint", with(func(r *Request) {
			r.Constraints = []constraint.Constraint{{Left: "${attr.arch}", Operand: "=", Right: "arm64"}}
		}), "n", 0, notFiltered, false, "constraint, datacenter or node pool", true},
		{"one that is met", with(func(r *Request) {
			r.Constraints = []constraint.Constraint{{Left: "${attr.arch}", Operand: "=", Right: "arm64"}}
		}), "slices", 0, Fits, true, "", false},
		{"CPU alone", Request{CPUMHz: 6000}, "n", 0, Fits, true, "", false},
		{"CPU alone, of another pool", Request{CPUMHz: 6000}, "n", 1, neverKind, false, "", false},
		{"no GPUs there", half, "cpu", 0, neverKind, false, "no GPU", true},
		{"not of this kind", half, "n", 1, neverKind, false, "", false},
		{"of no kind there", Request{GPUs: 1, Shared: true}, "slices", 0, neverKind, false, "GPUs in mode slice", true},
		{"two", with(func(r *Request) { r.GPUs = 2 }), "n", 0, noGPU, true, "only 1 GPU with 0.5 of the compute free, and 2 are needed on one node", false},
		{"two smaller", with(func(r *Request) { r.GPUs, r.ShareMilli = 2, 400 }), "n", 0, Fits, true, "", false},
		{"three", with(func(r *Request) { r.GPUs = 3 }), "n", 0, neverSize, false, "fewer than 3 GPUs of one kind, and all have to be on one node", true},
		{"a device that is not there", with(func(r *Request) { r.Device = "nvidia/gpu" }), "slices", 0, neverDevice, false, `no device "nvidia/gpu"`, true},
		{"whole ones", Request{GPUs: 2, Whole: true, Models: []string{"T4"}}, "n", 2, noGPU, true, "only 1 GPU with nothing on it, and 2 are needed on one node", false},
		{"a whole one", Request{GPUs: 1, Whole: true, Mode: gpu.ModeWhole}, "n", 2, Fits, true, "", false},
		{"turns", Request{GPUs: 2, Shared: true}, "n", 1, noGPU, true, "only 1 GPU with a turn free, and 2 are needed on one node", false},
	} {
		sh, n := NewShape(&c.r, s), s.Nodes[c.node]
		b := n.Pools[c.pool]
		if got := sh.Fit(s, b); got != c.fit {
			t.Errorf("%s: verdict %d, want %d", c.name, got, c.fit)
		}
		if got := sh.Could(s, b); got != c.could {
			t.Errorf("%s: could is %v", c.name, got)
		}
		if got := sh.Refusal(s, n); (got.Why != c.says || got.Never != c.never) && (c.says != "" || c.fit == Fits) {
			t.Errorf("%s: %+v, want %q", c.name, got, c.says)
		}
		if c.fit == Fits && sh.Lacks(s, &s.Each.List[b.ID]) {
			t.Errorf("%s: it fits, and the class lacks something", c.name)
		}
		if (c.fit == noCPU || c.fit == noMemory || c.fit == neverKind && c.r.GPUs > 0) && !sh.Lacks(s, &s.Each.List[b.ID]) {
			t.Errorf("%s: the class lacks nothing", c.name)
		}
		room := NewRoom(n)
		if got := room.Fits(s, sh) == b; got != (c.fit == Fits) {
			t.Errorf("%s: by a copy it fits is %v", c.name, got)
		}
	}
	tight := Request{GPUs: 1, ShareMilli: 999}
	mustApply(t, s, cluster.Usage{ID: "v", NodeID: "n", Takes: []cluster.Take{{GPU: 1, Milli: 100, Slices: 2}}})
	if sh := NewShape(&tight, s); !sh.Lacks(s, &s.Each.List[s.Nodes["n"].Pools[0].ID]) {
		t.Error("no GPU has as much, and the class lacks nothing")
	}
	if got := (Reason{Nodes: 1, Why: "no GPU"}).String(); got != "1 node: no GPU" {
		t.Error(got)
	}
	if got := (Reason{Nodes: 3, Why: "no GPU", Preempted: 2}).String(); got != "3 nodes: no GPU; 2 of them would do after preempting work of lower priority" {
		t.Error(got)
	}
	for _, c := range []struct {
		r    Request
		free int
		want string
	}{
		{Request{GPUs: 1, MemoryMiBPerGPU: 1024, ShareMilli: 500}, 0, "no GPU with 1 GiB and 0.5 of the compute free"},
		{Request{GPUs: 1, MemoryMiBPerGPU: 1023}, 0, "no GPU with 1023 MiB free"}, {Request{GPUs: 1, MemoryMiBPerGPU: 1025}, 0, "no GPU with 1.001 GiB free"}, {Request{GPUs: 1, MemoryMiBPerGPU: 1}, 0, "no GPU with 1 MiB free"},
		{Request{GPUs: 1, ShareMilli: 1}, 0, "no GPU with 0.001 of the compute free"}, {Request{GPUs: 1, MemoryMiBPerGPU: 1, ShareMilli: 1}, 0, "no GPU with 1 MiB and 0.001 of the compute free"},
		{Request{GPUs: 4, Whole: true}, 0, "no GPU with nothing on it, and 4 are needed on one node"}, {Request{GPUs: 4, Whole: true}, 3, "only 3 GPUs with nothing on them, and 4 are needed on one node"}, {Request{GPUs: 3, Whole: true}, 2, "only 2 GPUs with nothing on them, and 3 are needed on one node"},
	} {
		if got := gpuText(&c.r, c.free); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// Of several pools with too few GPUs free, the one with the most speaks for the node.
func TestTheClosestPoolSpeaksForTheNode(t *testing.T) {
	n := ofEach("n")
	for i := range n.GPUs {
		n.GPUs[i] = n.GPUs[0]
		n.GPUs[i].ID = fmt.Sprint("n-", i)
		if i >= 3 {
			n.GPUs[i].Type, n.GPUs[i].Model = "A2", "A2"
		}
	}
	for busy, want := range map[int]string{0: "only 2 GPUs", 3: "only 2 GPUs"} { // of the first kind, or of the second
		s := clusterOf(t, n)
		mustApply(t, s, cluster.Usage{ID: "a", NodeID: "n", Takes: []cluster.Take{{GPU: busy, Milli: 900, Slices: 1}, {GPU: busy + 1, Milli: 900, Slices: 1}}}, cluster.Usage{ID: "b", NodeID: "n", Takes: []cluster.Take{{GPU: 5 - busy, Milli: 900, Slices: 1}}})
		r := Request{GPUs: 3, ShareMilli: 500}
		if got := NewShape(&r, s).Refusal(s, s.Nodes["n"]); !strings.HasPrefix(got.Why, want) {
			t.Errorf("%q, want %s", got.Why, want)
		}
	}
}

// Who may sit beside whom where tasks step aside for each other.
func TestWhoSitsBesideWhom(t *testing.T) {
	for _, c := range []struct {
		beside   Beside
		wants    int
		neighbor *cluster.Usage // nil: none
		want     bool
	}{
		{BesideAny, 0, &cluster.Usage{SeatPriority: 70}, true}, {BesideNone, 0, nil, true}, {BesideNone, 70, &cluster.Usage{SeatPriority: 1, Idle: true}, false},
		{BesideLower, 60, &cluster.Usage{SeatPriority: 59}, true}, {BesideLower, 60, &cluster.Usage{SeatPriority: 60}, false}, {BesideLower, 60, &cluster.Usage{SeatPriority: 60, Idle: true}, true},
		{BesideLower, 90, &cluster.Usage{SeatPriority: 85}, false}, {BesideLower, 90, &cluster.Usage{SeatPriority: 79}, true}, {BesideLower, 60, nil, true},
	} {
		s := clusterOf(t, ofEach("n"))
		if c.neighbor != nil {
			u := *c.neighbor
			u.ID, u.NodeID, u.Takes = "u", "n", []cluster.Take{{GPU: 0, Milli: 1, Slices: 1}, {GPU: 2, Replicas: 1}}
			mustApply(t, s, u)
		}
		r := Request{GPUs: 1, Shared: true, Beside: c.beside, SeatPriority: c.wants}
		sh := NewShape(&r, s)
		b := s.Nodes["n"].Pools[1]
		if got := sh.Suits(b, 0); got != c.want || !sh.Suits(b, 1) || !sh.Suits(s.Nodes["n"].Pools[0], 0) {
			t.Errorf("%+v: suits is %v", c, got)
		}
		want := 2
		if !c.want {
			want = 1
		}
		if got := sh.suiting(b); got != want {
			t.Errorf("%+v: %d GPUs suit, want %d", c, got, want)
		}
	}
}

// What starts and ends on a copy of a node's room, as on the node.
func TestRoomIsAsTheNode(t *testing.T) {
	s := clusterOf(t, ofEach("n"))
	n := s.Nodes["n"]
	mustApply(t, s, cluster.Usage{ID: "u", NodeID: "n", CPUMHz: 1000, MemoryMiB: 2000, Takes: []cluster.Take{{GPU: 0, Milli: 600, Slices: 9}, {GPU: 3, Replicas: 2}, {GPU: 4, Milli: 1000}}})
	state := func(r *Room) string {
		text := fmt.Sprint(r.cpu, r.memory)
		for _, gpus := range r.gpus {
			for _, g := range gpus {
				text += fmt.Sprint(" ", g.Milli, g.Slices, g.Replicas, g.Tasks)
			}
		}
		return text
	}
	for _, c := range []struct {
		r    Request
		pool int
		gpus []int
	}{
		{Request{CPUMHz: 9000, MemoryMiB: 18_000}, 0, nil}, {Request{GPUs: 1, ShareMilli: 500}, 0, []int{1}}, {Request{GPUs: 1, ShareMilli: 400}, 0, []int{0}}, {Request{GPUs: 2, ShareMilli: 300, CPUMHz: 5}, 0, []int{0, 1}},
		{Request{GPUs: 1, Shared: true, Instances: 3}, 1, []int{2}}, {Request{GPUs: 2, Shared: true}, 1, []int{2, 3}}, {Request{GPUs: 1, Whole: true, Mode: gpu.ModeWhole, MemoryMiB: 7}, 2, []int{5}},
	} {
		room := NewRoom(n)
		sh, before := NewShape(&c.r, s), state(&room)
		if room.Fits(s, sh) != n.Pools[c.pool] {
			t.Fatalf("%+v fits elsewhere", c.r)
		}
		twin := room.Copy()
		u := room.Take(s, sh, n.Pools[c.pool])
		var gpus []int
		for _, take := range u.Takes {
			gpus = append(gpus, take.GPU)
		}
		if fmt.Sprint(gpus) != fmt.Sprint(c.gpus) || state(&twin) != before {
			t.Errorf("%+v takes GPUs %v, want %v; its copy has %s", c.r, gpus, c.gpus, state(&twin))
		}
		u.ID = "new"
		mustApply(t, s, *u)
		after := NewRoom(n)
		if state(&room) != state(&after) {
			t.Errorf("%+v: room %s, and the node has %s", c.r, state(&room), state(&after))
		}
		s.MustRelease("new")
		if room.Add(u, 1); state(&room) != before {
			t.Errorf("%+v: after it %s, before %s", c.r, state(&room), before)
		}
	}
	room := NewRoom(n)
	for _, r := range []Request{{CPUMHz: 9001}, {MemoryMiB: 18_001}, {GPUs: 2, ShareMilli: 500}, {GPUs: 3, ShareMilli: 1}, {GPUs: 2, Whole: true, Mode: gpu.ModeWhole}, {GPUs: 1, Shared: true, Instances: 5}, {GPUs: 1, ShareMilli: 1, Datacenters: []string{"dc2"}}} {
		if got := room.Fits(s, NewShape(&r, s)); got != nil {
			t.Errorf("%+v fits", r)
		}
	}
}

// How often a GPU and a node hold a task.
func TestHowManyFit(t *testing.T) {
	free := &cluster.GPUState{Milli: 700, Slices: 8, Replicas: 3, Open: true}
	for _, c := range []struct {
		nd   Need
		want int
	}{
		{Need{Whole: true}, 1}, {Need{Take: cluster.Take{Milli: 100}}, 7}, {Need{Take: cluster.Take{Milli: 100, Slices: 2}}, 4}, {Need{Take: cluster.Take{Replicas: 1}}, 3}, {Need{Take: cluster.Take{Milli: 350, Slices: 1, Replicas: 1}}, 2},
		{Need{Take: cluster.Take{Milli: 1}}, 700}, {Need{Take: cluster.Take{Slices: 1}}, 8}, {Need{}, 1000},
	} {
		if got := c.nd.Times(free); got != c.want {
			t.Errorf("%+v: %d times, want %d", c.nd, got, c.want)
		}
	}
	n := &cluster.NodeState{CPU: 1000, Memory: 900}
	for _, c := range []struct {
		cpu, memory int64
		want        int
	}{{0, 0, 5}, {1, 1, 5}, {250, 0, 4}, {250, 300, 3}, {0, 901, 0}, {1001, 0, 0}, {1000, 900, 1}} {
		if got := (&Shape{Req: Request{CPUMHz: c.cpu, MemoryMiB: c.memory}}).OnHost(n, 5); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	for _, c := range []struct {
		nd   Need
		c    cluster.GPUState
		want bool
	}{
		{Need{Take: cluster.Take{Milli: 700, Slices: 8, Replicas: 3}}, *free, true}, {Need{Take: cluster.Take{Milli: 701}}, *free, false}, {Need{Take: cluster.Take{Slices: 9}}, *free, false}, {Need{Take: cluster.Take{Replicas: 4}}, *free, false},
		{Need{}, cluster.GPUState{}, false}, {Need{Whole: true}, cluster.GPUState{Open: true}, true}, {Need{Whole: true}, cluster.GPUState{Open: true, Tasks: 1}, false}, {Need{}, cluster.GPUState{Open: true, Tasks: 1}, true},
	} {
		if got := c.nd.Fits(&c.c); got != c.want {
			t.Errorf("%+v on %+v: %v", c.nd, c.c, got)
		}
	}
}

// GPUs of a device group that meets a block's name and conditions suit it, and no others.
func TestDeviceGroupsSuitBlocks(t *testing.T) {
	n := ofEach("n")
	group := &constraint.Device{Vendor: "nvidia", Type: "gpu", Name: "T4"}
	n.GPUs[4].Device = group
	s := clusterOf(t, n)
	b := s.Nodes["n"].Pools[2]
	for _, c := range []struct {
		r    Request
		want bool
	}{
		{Request{Device: "gpu"}, true}, {Request{Device: "nvidia/gpu/T4"}, true}, {Request{Device: "amd/gpu"}, false},
		{Request{Conditions: []constraint.Constraint{{Left: "${device.vendor}", Operand: "=", Right: "nvidia"}}}, true}, {Request{Conditions: []constraint.Constraint{{Left: "${device.vendor}", Operand: "=", Right: "amd"}}}, false},
		{Request{Device: "gpu", Conditions: []constraint.Constraint{{Left: "${device.vendor}", Operand: "=", Right: "amd"}}}, false},
	} {
		c.r.GPUs, c.r.Whole = 1, true
		sh := NewShape(&c.r, s)
		for range 2 { // the second time from memory
			if got := sh.Suits(b, 0); got != c.want || sh.Suits(b, 1) {
				t.Errorf("%+v: suits is %v, and %v without a group", c.r, got, sh.Suits(b, 1))
			}
		}
		if known, looked := sh.Meets[group]; !looked || known != c.want || !sh.Apart() {
			t.Errorf("%+v: remembered is %v, %v", c.r, known, looked)
		}
	}
}

// A grammar that names several models puts them in order, and what names or excludes any is bound to models.
func TestWhatIsAskedOfModels(t *testing.T) {
	s := clusterOf(t, ofEach("n"))
	for text, want := range map[string]struct {
		gpus           int
		whole          bool
		milli, memory  int64
		ordered, bound bool
	}{
		"2": {2, true, 0, 0, false, false}, "0.5": {1, false, 500, 0, false, false}, "8G,0.3": {1, false, 300, 8192, false, false}, "1(T4)": {1, true, 0, 0, false, true}, "0.5(A100|T4)": {1, false, 500, 0, true, true}, "1(!T4)": {1, true, 0, 0, false, true},
	} {
		g, err := gpu.ParseRequest(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		r := Request{Whole: true, Shared: true, ShareMilli: 7}
		r.Ask(g)
		sh := NewShape(&r, s)
		if r.GPUs != want.gpus || r.Whole != want.whole || r.Shared || r.ShareMilli != want.milli || r.MemoryMiBPerGPU != want.memory || r.Ordered != want.ordered || sh.Demand.Bound != want.bound {
			t.Errorf("%s: %+v, bound %v", text, r, sh.Demand.Bound)
		}
		if sh.Demand.GPUs != r.GPUs || sh.Demand.Whole != r.Whole || sh.Req.ID != "" {
			t.Errorf("%s: demand %+v", text, sh.Demand)
		}
	}
}

// Names of policies.
func TestNamesOfPolicies(t *testing.T) {
	for _, p := range []Policy{PolicyBalanced, PolicyPack, PolicySpread} {
		if got, err := ParsePolicy(p.String()); got != p || err != nil {
			t.Errorf("%s: %s, %v", p, got, err)
		}
	}
	if got, err := ParsePolicy(""); got != PolicyDefault || err != nil || got.String() != "DEFAULT" {
		t.Errorf("no name: %s, %v", got, err)
	}
	for _, name := range []string{"DEFAULT", "pack"} {
		if _, err := ParsePolicy(name); err == nil {
			t.Errorf("%q is a policy", name)
		}
	}
	if got := Policy(9).String(); got != "policy(9)" {
		t.Error(got)
	}
}
