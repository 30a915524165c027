// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
)

// BenchmarkTies places on idle nodes that are as good as each other, the worst
// case for finding the best: nodes in one state, nodes that each differ a
// little, and requests that see every node for itself. The cost should hardly
// grow with the nodes.
func BenchmarkTies(b *testing.B) {
	ask := Request{GPUs: 1, MemoryMiBPerGPU: 8 << 10, CPUMHz: 1000, MemoryMiB: 1024}
	pooled, constrained := ask, ask
	pooled.Pools = []string{"default"}
	constrained.Constraints = []constraint.Constraint{{Left: "${kernel.name}", Operand: "=", Right: "linux"}}
	for _, c := range []struct {
		name    string
		request Request
		differ  int64 // MHz between one node and the next
	}{
		{"alike", ask, 0}, {"pool", pooled, 0}, {"constraint", constrained, 0}, {"different", ask, 1},
	} {
		for _, nodes := range []int{1000, 10000} {
			b.Run(fmt.Sprintf("%s/%d", c.name, nodes), func(b *testing.B) {
				p := idleNodes(b, nodes, c.differ)
				b.ResetTimer()
				for i := range b.N {
					r := c.request
					r.ID = fmt.Sprint("task-", i)
					p.Arrive(&r)
					pl, err := p.Place(&r)
					if err != nil {
						b.Fatal(err)
					}
					if err := p.snap.Apply(pl.Usage); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func idleNodes(b *testing.B, count int, differ int64) *Planner {
	b.Helper()
	s := NewSnapshot()
	for i := range count {
		n := testNode(fmt.Sprint("node-", i), "A100", 8)
		n.Pool, n.Attributes = "default", map[string]string{"kernel.name": "linux"}
		n.CPUMHz += int64(i) * differ
		if err := s.AddNode(n); err != nil {
			b.Fatal(err)
		}
	}
	return NewPlanner(s, PolicyBalanced, DefaultWeights())
}
