// SPDX-License-Identifier: MPL-2.0

package reconcile_test

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// BenchmarkNext looks for something to do after a node changed, on a cluster of machines
// with ten allocs each, where half as many groups wait for room that there is not.
func BenchmarkNext(b *testing.B) {
	for _, nodes := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			w := crowded(b, nodes)
			w.LetTimePass()
			i := 0
			for b.Loop() {
				n := servicetest.Machine(fmt.Sprintf("m%05d", i%nodes), 8)
				w.Index++
				n.Index = w.Index
				w.State.Apply([]nomad.Change{{Node: n}}, w.Index)
				if item := w.Next(nil, true); item != nil {
					b.Fatalf("%+v", item)
				}
				i++
			}
		})
	}
}

// crowded is a cluster of machines with ten allocs each, where half as many groups wait
// for a whole machine.
func crowded(b *testing.B, nodes int) *servicetest.Service {
	b.Helper()
	var machines []*nomad.Node
	for i := range nodes {
		machines = append(machines, servicetest.Machine(fmt.Sprintf("m%05d", i), 8))
	}
	w := servicetest.New(b, "", machines...)
	for i := range 10 * nodes {
		a := servicetest.Ask(fmt.Sprintf("job-%06d", i), "4G", 1)
		w.Register(a)
		w.Run(a, fmt.Sprintf("%08d-0000-0000-0000-000000000000", i), fmt.Sprintf("m%05d", i%nodes), i/nodes%8, i/nodes/8*4, 4)
	}
	for i := range nodes / 2 {
		a := servicetest.Ask(fmt.Sprintf("wait-%d", i), "8", 1)
		w.Submit(b, a)
		w.Register(a)
		w.Block(a, 1)
	}
	return w
}
