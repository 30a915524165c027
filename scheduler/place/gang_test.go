package place

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A gang is placed whenever its tasks fit side by side: beside the planner all ways
// to spread it over the nodes are tried.
func TestGangsArePlacedWhereverTheyFit(t *testing.T) {
	refused := 0
	for seed := range *bruteClusters {
		rng := rand.New(rand.NewPCG(uint64(seed), 13))
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
				t.Fatal(err)
			}
		}
		var gang []Request
		for i := range 2 + rng.IntN(4) {
			gang = append(gang, Request{ID: fmt.Sprint("r", i), GPUs: 1 + rng.IntN(3), Whole: true, CPUMHz: int64(rng.IntN(6)) * 1000, MemoryMiB: int64(rng.IntN(6)) * 1000})
		}
		p := NewPlanner(s, []Policy{PolicyBalanced, PolicyPack, PolicySpread}[rng.IntN(3)], quick())
		out, err := p.PlaceGang(gang)
		if possible := gangFits(s, gang); possible != (err == nil) {
			t.Fatalf("cluster %d, gang %+v: %v, but it fits: %v", seed, gang, err, possible)
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
}

// gangFits tries all ways to spread a gang of whole GPUs over empty nodes.
func gangFits(s *Snapshot, gang []Request) bool {
	type free struct{ cpu, memory, gpus int64 }
	var nodes []free
	for _, n := range s.Nodes {
		nodes = append(nodes, free{n.CPU, n.Memory, int64(len(n.Spec.GPUs))})
	}
	var from func(i int) bool
	from = func(i int) bool {
		if i == len(gang) {
			return true
		}
		r := &gang[i]
		for n := range nodes {
			f := nodes[n]
			if f.cpu < r.CPUMHz || f.memory < r.MemoryMiB || f.gpus < int64(r.GPUs) {
				continue
			}
			nodes[n] = free{f.cpu - r.CPUMHz, f.memory - r.MemoryMiB, f.gpus - int64(r.GPUs)}
			done := from(i + 1)
			nodes[n] = f
			if done {
				return true
			}
		}
		return false
	}
	return from(0)
}
