// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// BenchmarkEvictForAll is the search, in vain, for victims for a group that starts as one:
// on a cluster whose GPUs are all held, for the last of its allocs there are none.
func BenchmarkEvictForAll(b *testing.B) {
	for _, nodes := range sizes {
		for _, count := range []int{50, 500} {
			b.Run(fmt.Sprintf("nodes=%d/count=%d", nodes, count), func(b *testing.B) {
				var machines []*nomad.Node
				for i := range nodes {
					machines = append(machines, servicetest.Machine(fmt.Sprintf("m%05d", i), 8))
				}
				w := servicetest.New(b, servicetest.Quick, machines...)
				for i := range 8 * nodes {
					a := servicetest.Ask(fmt.Sprintf("job-%06d", i), "16G", 1)
					if a.Priority = 90; i < count-1 {
						a.Priority = 10
					}
					w.Register(a)
					w.Run(a, fmt.Sprintf("%08d-0000-0000-0000-000000000000", i), fmt.Sprintf("m%05d", i%nodes), i/nodes, 0, 16)
				}
				all := gang("all", count, 80)
				w.Submit(b, all)
				w.Register(all)
				w.Block(all, count)
				w.Pass(servicetest.Settled)
				key := servicetest.KeyOf(all)
				for b.Loop() {
					w.State.Do(func(tx *state.Tx) {
						g := tx.Queue.Record(key).Groups["g"]
						if e := decide.EvictForAll(tx, key, &g, decide.NewWindow(tx)); e != nil {
							b.Fatalf("%d go", len(e.Victims))
						}
					})
				}
			})
		}
	}
}
