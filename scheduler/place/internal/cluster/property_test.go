// SPDX-License-Identifier: MPL-2.0

package cluster_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// randomNode has GPUs of one or two kinds, in any mode, some of them closed.
func randomNode(rng *rand.Rand, id string) cluster.Node {
	n := cluster.Node{
		ID: id, Name: id, Datacenter: []string{"dc1", "dc2"}[rng.IntN(2)], Pool: []string{"default", "gpu"}[rng.IntN(2)],
		CPUMHz: 10_000 * int64(1+rng.IntN(3)), MemoryMiB: 10_000, Ineligible: rng.IntN(8) == 0,
	}
	for i := range rng.IntN(5) {
		g := cluster.GPU{
			ID: fmt.Sprintf("%s-%d", id, i), Model: "T4", Type: []string{"T4", "A2"}[min(1, rng.IntN(4)/3)], Mode: gpu.ModeWhole, MemoryMiB: 10_240, NUMA: i / 2,
			MeasuredMilli: int64(rng.IntN(1001) - 1), MeasuredMemoryMiB: cluster.Unmeasured, SurplusMilli: max(0, int64(rng.IntN(1200)-600)),
			Unhealthy: rng.IntN(10) == 0, Cordoned: rng.IntN(10) == 0,
		}
		switch rng.IntN(3) {
		case 0:
			g.Mode, g.Slices, g.SliceMiB = gpu.ModeSlice, 10, 1024
		case 1:
			g.Mode, g.Sharing, g.Replicas, g.SeatPriority = gpu.ModeShared, gpu.SharingSuspend, 4, 50+rng.IntN(50)
		}
		n.GPUs = append(n.GPUs, g)
	}
	return n
}

// randomUsage holds parts of a node, mostly such as it has.
func randomUsage(rng *rand.Rand, id string, n *cluster.Node) cluster.Usage {
	u := cluster.Usage{
		ID: id, NodeID: n.ID, Job: []string{"", "web", "train"}[rng.IntN(3)], Namespace: []string{"", "prod"}[rng.IntN(2)], Queue: []string{"", "a", "b"}[rng.IntN(3)],
		Priority: 10 * rng.IntN(4), CPUMHz: 100 * int64(rng.IntN(40)), MemoryMiB: 100 * int64(rng.IntN(30)),
		Start: time.Unix(int64(rng.IntN(1000)), 0), Reclaim: rng.IntN(4) == 0,
	}
	for i := range n.GPUs {
		if rng.IntN(2) > 0 {
			continue
		}
		take := cluster.Take{GPU: i, Milli: 1000}
		switch g := &n.GPUs[i]; g.Mode {
		case gpu.ModeSlice:
			take.Milli, take.Slices = 100*int64(1+rng.IntN(6)), int64(1+rng.IntN(6))
		case gpu.ModeShared:
			take.Milli, take.Replicas = 0, int64(1+rng.IntN(2))
		}
		if rng.IntN(3) == 0 {
			take.Expected = int64(rng.IntN(1001))
		}
		u.Takes = append(u.Takes, take)
	}
	return u
}

// look is all that can be seen of a snapshot, whatever happened before. Nodes are named in an order that
// does not depend on the snapshot.
func look(t *testing.T, s *cluster.Snapshot) string {
	t.Helper()
	var b strings.Builder
	classes := map[int32][]string{}
	for _, id := range s.NodeIDs() {
		n := s.Nodes[id]
		fmt.Fprintln(&b, id, n.CPU, n.Memory)
		for i, u := range n.Holders {
			fmt.Fprintln(&b, "  holds", u.ID, u.Takes, u.Charge(), i > 0 && n.Holders[i-1].ID >= u.ID)
		}
		for i, p := range n.Pools {
			name := fmt.Sprint(id, "/", i)
			e := s.Evictables[p.ID]
			if e.Kind = 0; p.Kind >= 0 {
				fmt.Fprintln(&b, "  kind", s.Kinds[p.Kind])
			}
			fmt.Fprintln(&b, " ", name, p.Positions, p.GPUs, p.Idle, p.Free, p.Used, p.Measured, p.Shares, e)
			classes[p.Class] = append(classes[p.Class], name)
			if s.Pools[p.ID] != p || !slices.Equal(s.Each.List[p.ID].Pools, []int32{p.ID}) || !slices.Contains(s.States.List[p.Class].Pools, p.ID) {
				t.Fatalf("pool %s is not in its lists", name)
			}
		}
	}
	members := 0
	for id, c := range s.States.List {
		members += len(c.Pools)
		if len(c.Pools) > 0 && (s.States.First[id] != c.Pools[0] || !slices.IsSorted(c.Pools)) {
			t.Fatalf("class %d of pools %v has %d first", id, c.Pools, s.States.First[id])
		}
	}
	var alike []string
	for _, names := range classes {
		members -= len(names)
		slices.Sort(names)
		alike = append(alike, strings.Join(names, " "))
	}
	if members != 0 {
		t.Fatalf("%d pools too many are in classes", members)
	}
	slices.Sort(alike)
	var kinds, pools []string
	supply := s.Supply()
	for id, k := range supply.Kinds {
		idle := map[int32]int{}
		for n, count := range k.Idle {
			if count != 0 {
				idle[n] = count
			}
		}
		if s.Stock[id].GPUs > 0 {
			kinds = append(kinds, fmt.Sprint(s.Kinds[id], k.Free, idle, k.Largest, s.Stock[id].GPUs))
		}
	}
	for p, number := range supply.Pools {
		p.Kind = 0
		for range number {
			pools = append(pools, fmt.Sprint(p))
		}
	}
	slices.Sort(kinds)
	slices.Sort(pools)
	var queues, jobs []string
	for _, q := range []string{"a", "b"} {
		queues = append(queues, fmt.Sprint(s.Held(q), len(s.Claims(q))))
	}
	for _, name := range []string{"web", "train"} {
		for _, u := range slices.Concat(s.OfJob("", name), s.OfJob("prod", name)) {
			jobs = append(jobs, name+"/"+u.ID)
		}
	}
	slices.Sort(jobs)
	fmt.Fprintln(&b, alike, kinds, pools, queues, jobs, len(s.Usages), s.Priorities, s.AnyReclaimable(), s.LowestSeatBound(), s.MostlyFree(300), s.MostlyFree(700), s.AnyBelow(20))
	fmt.Fprintf(&b, "%.9f\n", s.CPUPerGPU())
	return b.String()
}

// Whatever comes, changes and goes, a snapshot is as one that has only seen what is there now.
func TestSnapshotsForgetWhatWas(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s := cluster.NewSnapshot()
		nodes, usages := map[string]cluster.Node{}, map[string]cluster.Usage{}
		for op := range 200 {
			id := fmt.Sprint("n", rng.IntN(6))
			_, known := nodes[id]
			switch n := randomNode(rng, id); {
			case !known:
				if err := s.AddNode(n); err != nil {
					t.Fatal(err)
				}
				nodes[id] = n
			case rng.IntN(12) == 0:
				gone, err := s.RemoveNode(id)
				if err != nil {
					t.Fatal(err)
				}
				for _, u := range gone {
					delete(usages, u.ID)
				}
				delete(nodes, id)
			case rng.IntN(6) == 0:
				if err := s.UpdateNode(n); err != nil {
					t.Fatal(err)
				}
				nodes[id] = n
				for _, u := range s.UsagesOn(id) { // GPUs that are gone are held no more
					usages[u.ID] = u
				}
			case rng.IntN(2) == 0 && len(usages) > 0:
				for uid := range usages {
					if _, err := s.Release(uid); err != nil {
						t.Fatal(err)
					}
					delete(usages, uid)
					break
				}
			default:
				old := nodes[id]
				u := randomUsage(rng, fmt.Sprint("u", op), &old)
				err := s.Apply(u)
				if err != nil && rng.IntN(4) == 0 {
					err = s.Observe(u) // a fact, whatever there is
				}
				if err == nil {
					usages[u.ID] = u
				}
			}
			fresh := cluster.NewSnapshot()
			for _, n := range nodes {
				if err := fresh.AddNode(n); err != nil {
					t.Fatal(err)
				}
			}
			for _, u := range usages {
				if err := fresh.Observe(u); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := look(t, s), look(t, fresh); got != want {
				t.Fatalf("seed %d, operation %d:\n%s\nwant\n%s", seed, op, got, want)
			}
		}
	}
}
