// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// BenchmarkDecideWhatWaits is one admission for which no node has room, while half as many
// groups wait as there are nodes, and those that were admitted before.
func BenchmarkDecideWhatWaits(b *testing.B) {
	for _, nodes := range sizes {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			w := large(b, "", nodes)
			wait(b, w, nodes)
			i := 0
			for b.Loop() {
				a := servicetest.Ask(fmt.Sprintf("new-%d", i), "8", 1)
				w.Submit(b, a)
				w.Register(a)
				w.Block(a, 1)
				i++
			}
		})
	}
}

// BenchmarkWouldFit is what would start now in place of one of those that wait, beside half
// as many as there are nodes, and beside that the admission of one for which there is no room.
func BenchmarkWouldFit(b *testing.B) {
	for _, nodes := range sizes {
		w := large(b, "", nodes)
		wait(b, w, nodes)
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			var f *decide.Fitting
			w.State.Do(func(tx *state.Tx) { f = decide.NewFitting(tx) })
			began, looked := *f, 0
			for b.Loop() {
				w.State.Do(func(tx *state.Tx) {
					if !f.Next(tx) {
						*f = began
					}
				})
				looked++
			}
			if found, _ := f.Found(); len(found) == 0 {
				b.Fatalf("nothing was found in %d looks", looked)
			}
		})
	}
}

// BenchmarkRefuse is the refusal of what no node could ever hold, each with another demand
// for CPU, with what would start now in its place.
func BenchmarkRefuse(b *testing.B) {
	for _, nodes := range sizes {
		w := large(b, "", nodes)
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			i := int64(0)
			for b.Loop() {
				a := servicetest.Ask("refused", "40G", 1)
				a.CPUMHz += i
				if _, err := w.Decide(b.Context(), []admit.Ask{a}, false); err == nil {
					b.Fatal("it is not refused")
				}
				i++
			}
		})
	}
}
