// SPDX-License-Identifier: MPL-2.0

package place

import (
	"flag"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

var bruteClusters = flag.Int("place.clusters", 2000, "random clusters on which gangs are compared with all ways to place them")

// A gang is placed whenever its tasks fit side by side: beside the planner all ways
// to spread it over the GPUs are tried, of nodes that are empty and of nodes where some are in use.
func TestGangsArePlacedWhereverTheyFit(t *testing.T) {
	for _, c := range []struct {
		name    string
		cluster func(rng *rand.Rand) (*Snapshot, []Request)
		seed    uint64
	}{{"whole GPUs", wholeGang, 13}, {"shares", sharedGang, 14}} {
		t.Run(c.name, func(t *testing.T) {
			refused := 0
			for seed := range *bruteClusters {
				rng := rand.New(rand.NewPCG(uint64(seed), c.seed))
				s, gang := c.cluster(rng)
				p := NewPlanner(s, []Policy{PolicyBalanced, PolicyPack, PolicySpread}[rng.IntN(3)], quick())
				out, err := p.PlaceGang(gang)
				if possible := gangFits(s, gang); possible != (err == nil) {
					t.Fatalf("cluster %d, %s, gang %+v: %v, but it fits: %v", seed, p.policy, gang, err, possible)
				}
				if err != nil {
					refused++
					continue
				}
				for i := range out {
					if err := s.Apply(out[i].Usage); err != nil || out[i].Usage.ID != gang[i].ID {
						t.Fatalf("cluster %d: answer %d is %+v: %v", seed, i, out[i], err)
					}
				}
			}
			if refused == 0 || refused == *bruteClusters {
				t.Errorf("%d of %d gangs are refused: that tries nothing", refused, *bruteClusters)
			}
		})
	}
}

// wholeGang is a small empty cluster, and a gang that asks for whole GPUs.
func wholeGang(rng *rand.Rand) (*Snapshot, []Request) {
	s := NewSnapshot()
	nodes := 2 + rng.IntN(3)
	for n := range nodes {
		node := Node{ID: fmt.Sprint("n", n), CPUMHz: int64(2+rng.IntN(8)) * 1000, MemoryMiB: int64(2+rng.IntN(8)) * 1000}
		for i := range 1 + rng.IntN(4) {
			node.GPUs = append(node.GPUs, GPU{
				ID: fmt.Sprint(n, "-", i), Model: "T4", Type: "T4", Mode: gpu.ModeWhole, MemoryMiB: 1000,
				MeasuredMilli: Unmeasured, MeasuredMemoryMiB: Unmeasured,
			})
		}
		if err := s.AddNode(node); err != nil {
			panic(err)
		}
	}
	var gang []Request
	for i := range 2 + rng.IntN(4) {
		gang = append(gang, Request{ID: fmt.Sprint("r", i), GPUs: 1 + rng.IntN(3), Whole: true, CPUMHz: int64(rng.IntN(6)) * 1000, MemoryMiB: int64(rng.IntN(6)) * 1000})
	}
	return s, gang
}

// sharedGang is a small cluster where others hold parts of the GPUs, of compute and of memory not
// as much, and a gang that asks for parts.
func sharedGang(rng *rand.Rand) (*Snapshot, []Request) {
	s := NewSnapshot()
	for n := range 1 + rng.IntN(3) {
		node := Node{ID: fmt.Sprint("n", n), CPUMHz: int64(4+rng.IntN(8)) * 1000, MemoryMiB: 100_000}
		for i := range 1 + rng.IntN(3) {
			node.GPUs = append(node.GPUs, GPU{
				ID: fmt.Sprint(n, "-", i), Model: "T4", Type: "T4", Mode: gpu.ModeSlice, MemoryMiB: 10_000, SliceMiB: 1000, Slices: 10,
				MeasuredMilli: Unmeasured, MeasuredMemoryMiB: Unmeasured,
			})
		}
		if err := s.AddNode(node); err != nil {
			panic(err)
		}
		for i := range node.GPUs {
			if rng.IntN(4) == 0 {
				continue
			}
			u := Usage{ID: fmt.Sprint(n, "u", i), NodeID: node.ID, Takes: []Take{{GPU: i, Milli: 100 * int64(rng.IntN(9)), Slices: int64(rng.IntN(9))}}}
			if rng.IntN(2) == 0 {
				u.Takes[0].Slices = u.Takes[0].Milli / 100
			}
			if err := s.Apply(u); err != nil {
				panic(err)
			}
		}
	}
	var gang []Request
	for i := range 2 + rng.IntN(4) {
		r := Request{ID: fmt.Sprint("r", i), GPUs: 1, CPUMHz: int64(rng.IntN(4)) * 1000}
		if rng.IntN(6) == 0 {
			r.GPUs = 2
		}
		switch rng.IntN(8) {
		case 0:
			r.Whole = true
		case 1:
			r.MemoryMiBPerGPU = 1000 * int64(1+rng.IntN(7))
		case 2:
			r.ShareMilli, r.MemoryMiBPerGPU = 100*int64(1+rng.IntN(7)), 1000*int64(1+rng.IntN(7))
		default:
			r.ShareMilli = 100 * int64(1+rng.IntN(7))
		}
		if rng.IntN(8) == 0 {
			r.Nodes = []string{"n0"}
		}
		gang = append(gang, r)
	}
	return s, gang
}

// gangFits tries all ways to spread a gang over the nodes and their GPUs.
func gangFits(s *Snapshot, gang []Request) bool {
	var from func(i int) bool
	from = func(i int) bool {
		if i == len(gang) {
			return true
		}
		r := &gang[i]
		sh := fit.NewShape(r, s)
		for _, n := range s.Nodes {
			if n.CPU < r.CPUMHz || n.Memory < r.MemoryMiB || !r.AdmittedBy(&n.Spec) {
				continue
			}
			for set := range 1 << len(n.Spec.GPUs) {
				if bits.OnesCount(uint(set)) != r.GPUs {
					continue
				}
				u := Usage{ID: r.ID, NodeID: n.Spec.ID, CPUMHz: r.CPUMHz, MemoryMiB: r.MemoryMiB}
				for g, at := range n.Where {
					if nd := sh.Need(s, at.Pool.Kind); set>>g&1 == 1 && nd.Fits(&at.Pool.GPUs[at.Index]) {
						take := nd.Take
						take.GPU = g
						u.Takes = append(u.Takes, take)
					}
				}
				if len(u.Takes) < r.GPUs || s.Apply(u) != nil {
					continue
				}
				done := from(i + 1)
				s.MustRelease(u.ID)
				if done {
					return true
				}
			}
		}
		return false
	}
	return from(0)
}

// What makes no difference to a task alone does to the others: which GPU of a node it shares, and
// which of two nodes that are alike it takes.
func TestGangsTryWhatIsAlikeToOneTask(t *testing.T) {
	share := func(milli int64, nodes ...string) Request {
		return Request{ID: fmt.Sprint(milli, nodes), GPUs: 1, ShareMilli: milli, Nodes: nodes}
	}
	for _, c := range []struct {
		name  string
		nodes []Node
		gang  []Request
	}{
		{"500 on the fuller GPU leaves no room for 400 and 300", []Node{testNode("n1", "A100", 2)}, []Request{share(300), share(400), share(500), share(301)}},
		{"the first node is the only one for another", []Node{testNode("n1", "A100", 1), testNode("n2", "A100", 1)}, []Request{share(900), share(800, "n1")}},
		{"and its GPU", []Node{testNode("n1", "A100", 1), testNode("n2", "A100", 1)}, []Request{{ID: "whole", GPUs: 1, Whole: true}, share(800, "n1")}},
	} {
		for _, policy := range []Policy{PolicyBalanced, PolicyPack, PolicySpread} {
			s := NewSnapshot()
			for _, n := range c.nodes {
				if err := s.AddNode(n); err != nil {
					t.Fatal(err)
				}
			}
			if len(c.nodes) == 1 {
				held(t, s, "a", "n1", 0, 90, 50)
				held(t, s, "b", "n1", 1, 390, 50)
			}
			if _, err := NewPlanner(s, policy, DefaultWeights()).PlaceGang(c.gang); err != nil {
				t.Errorf("%s, %s: %v", c.name, policy, err)
			}
		}
	}
}

// quick are weights under which nothing is played for long.
func quick() Weights {
	w := FastWeights()
	w.Rough.Streams = 1
	return w
}
