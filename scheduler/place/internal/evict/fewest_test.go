// SPDX-License-Identifier: MPL-2.0

package evict

import (
	"flag"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

var bruteClusters = flag.Int("evict.clusters", 2000, "random clusters on which victims are compared with all sets of victims")

// No set of victims that would do has a lower highest priority, or as low a one and
// fewer victims: beside the search all sets are tried, on every node.
func TestVictimsAreTheFewest(t *testing.T) {
	for seed := range *bruteClusters {
		rng := rand.New(rand.NewPCG(uint64(seed), 11))
		s := cluster.NewSnapshot()
		for n := range 1 + rng.IntN(3) {
			node := cluster.Node{ID: fmt.Sprint("n", n), CPUMHz: 20_000, MemoryMiB: 20_000}
			for i := range 1 + rng.IntN(4) {
				node.GPUs = append(node.GPUs, cluster.GPU{
					ID: fmt.Sprint(n, "-", i), Model: "T4", Type: "T4", Mode: gpu.ModeSlice, MemoryMiB: 10, SliceMiB: 1, Slices: 10,
					MeasuredMilli: cluster.Unmeasured, MeasuredMemoryMiB: cluster.Unmeasured,
				})
			}
			if err := s.AddNode(node); err != nil {
				t.Fatal(err)
			}
			for u := range rng.IntN(10) {
				usage := cluster.Usage{ID: fmt.Sprint(n, "u", u), NodeID: node.ID, CPUMHz: int64(rng.IntN(6)) * 1000, MemoryMiB: int64(rng.IntN(6)) * 1000, Priority: 10 * rng.IntN(4), Start: time.Unix(int64(rng.IntN(1000)), 0)}
				for _, g := range rng.Perm(len(node.GPUs))[:rng.IntN(min(3, 1+len(node.GPUs)))] {
					usage.Takes = append(usage.Takes, cluster.Take{GPU: g, Milli: 100 * int64(1+rng.IntN(6)), Slices: int64(1 + rng.IntN(6))})
				}
				if len(usage.Takes) == 2 && usage.Takes[0].GPU > usage.Takes[1].GPU {
					usage.Takes[0], usage.Takes[1] = usage.Takes[1], usage.Takes[0]
				}
				_ = s.Apply(usage) // what does not fit is not there
			}
		}
		r := fit.Request{ID: "urgent", Priority: 25, CPUMHz: int64(rng.IntN(20)) * 1000, MemoryMiB: int64(rng.IntN(20)) * 1000, GPUs: rng.IntN(4)}
		switch {
		case r.GPUs > 0 && rng.IntN(2) == 0:
			r.Whole = true
		case r.GPUs > 0:
			r.ShareMilli = 100 * int64(1+rng.IntN(9))
		}
		top, fewest, possible := fewestByForce(s, &r)
		if possible && fewest == 0 {
			continue // there is room
		}
		found := New(s, Rules{}, &r, fit.NewShape(&r, s), time.Unix(2000, 0), nil).Best()
		if possible != (found != nil) {
			t.Fatalf("cluster %d: %v, but evictions would do: %v", seed, found, possible)
		}
		if found == nil {
			continue
		}
		if got := above(found.Victims); got != top || len(found.Victims) != fewest {
			t.Fatalf("cluster %d, request %+v: %d victims of priority below %d, want %d below %d", seed, r, len(found.Victims), got, fewest, top)
		}
	}
}

// On small random clusters, no set of victims on any node is of lower priority
// or smaller than the one that is found.
func TestVictimsAreTheFewestOfTasksOnSeveralGPUs(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 3))
		c := newScene(t, placetest.Node("n1", "A100", 1+rng.IntN(4)), placetest.Node("n2", "A100", 1+rng.IntN(4)), placetest.Node("n3", "A100", 2))
		for i := range 14 {
			u := cluster.Usage{
				ID: fmt.Sprintf("u%02d", i), NodeID: []string{"n1", "n2", "n3"}[rng.IntN(3)], Priority: 10 * (1 + rng.IntN(3)),
				Start: noon.Add(-time.Duration(rng.IntN(100)) * time.Minute),
			}
			share := int64(1+rng.IntN(10)) * 100
			slices := []int64{share * 80 / 1000, 10, 60}[rng.IntN(3)] // memory apart from compute
			gpus := len(c.snap.Nodes[u.NodeID].Spec.GPUs)
			for g := range gpus {
				if g == i%gpus || rng.IntN(8) == 0 {
					u.Takes = append(u.Takes, cluster.Take{GPU: g, Milli: share, Slices: slices})
				}
			}
			_ = c.snap.Apply(u) // some do not fit
		}
		r := c.ask([]string{"0.3", "0.7", "1", "2", "60G", "8G,0.6", "40G,0.2"}[rng.IntN(7)], "", 35)
		top, count, possible := fewestByForce(c.snap, r)
		if possible && count == 0 {
			continue // there is room
		}
		if found := c.eviction(r, noon).Best(); possible != (found != nil) {
			t.Errorf("seed %d: %v, but possible: %v", seed, found, possible)
		} else if possible && (above(found.Victims) != top || len(found.Victims) != count) {
			t.Errorf("seed %d: for %+v victims %v, best are %d of priority below %d", seed, r, c.victims(r), count, top)
		}
	}
}

// above is the least priority that is higher than those of all victims.
func above(victims []*cluster.Usage) (priority int) {
	for _, v := range victims {
		priority = max(priority, v.Priority+1)
	}
	return priority
}

// fewestByForce tries all sets of victims on all nodes: the highest priority among
// the best, plus one, and how many they are.
func fewestByForce(s *cluster.Snapshot, r *fit.Request) (top, victims int, ok bool) {
	sh := fit.NewShape(r, s)
	for _, n := range s.Nodes {
		var may []*cluster.Usage
		for _, u := range n.Holders {
			if u.Priority < r.Priority {
				may = append(may, u)
			}
		}
		for set := range 1 << len(may) {
			cpu, memory, high := n.CPU, n.Memory, 0
			milli, slices, tasks := make([]int64, len(n.Spec.GPUs)), make([]int64, len(n.Spec.GPUs)), make([]int32, len(n.Spec.GPUs))
			for i := range milli {
				c := n.Where[i].Pool.GPUs[n.Where[i].Index]
				milli[i], slices[i], tasks[i] = int64(c.Milli), int64(c.Slices), c.Tasks
			}
			for i, u := range may {
				if set>>i&1 == 0 {
					continue
				}
				cpu, memory, high = cpu+u.CPUMHz, memory+u.MemoryMiB, max(high, u.Priority+1)
				for _, t := range u.Takes {
					milli[t.GPU], slices[t.GPU], tasks[t.GPU] = milli[t.GPU]+t.Milli, slices[t.GPU]+t.Slices, tasks[t.GPU]-1
				}
			}
			room := 0
			for i := range milli {
				if r.GPUs == 0 {
					break
				}
				nd := sh.Need(s, n.Where[i].Pool.Kind)
				if nd.OK && (nd.Whole && tasks[i] == 0 || !nd.Whole && milli[i] >= nd.Take.Milli && slices[i] >= nd.Take.Slices) {
					room++
				}
			}
			if cpu < r.CPUMHz || memory < r.MemoryMiB || room < r.GPUs {
				continue
			}
			if count := bits.OnesCount(uint(set)); !ok || high < top || high == top && count < victims {
				top, victims, ok = high, count, true
			}
		}
	}
	return top, victims, ok
}
