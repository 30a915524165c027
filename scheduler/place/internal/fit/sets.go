// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"cmp"
	"iter"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
)

// GPUSets yields the sets of a pool's GPUs that hold a shape now, the tightest GPUs first. Of
// sets that leave the pool alike one is enough. A set is valid until the next.
func (sh *Shape) GPUSets(s *cluster.Snapshot, b *cluster.Pool) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		if sh.Req.GPUs == 0 {
			yield(nil)
			return
		}
		var may []int
		for i := range b.GPUs {
			if sh.Need(s, b.Kind).Fits(&b.GPUs[i]) && sh.Suits(b, i) {
				may = append(may, i)
			}
		}
		slices.SortStableFunc(may, func(i, j int) int {
			x, y := &b.GPUs[i], &b.GPUs[j]
			return cmp.Or(cmp.Compare(x.Share, y.Share), cmp.Compare(x.Milli, y.Milli), cmp.Compare(x.Slices, y.Slices))
		})
		var set []int
		var choose func(from int) bool
		choose = func(from int) bool {
			if len(set) == sh.Req.GPUs {
				return yield(slices.Sorted(slices.Values(set)))
			}
			for at := from; at < len(may); at++ {
				if slices.ContainsFunc(may[from:at], func(i int) bool { return alike(b, i, may[at]) }) {
					continue
				}
				set = append(set, may[at])
				more := choose(at + 1)
				if set = set[:len(set)-1]; !more {
					return false
				}
			}
			return true
		}
		choose(0)
	}
}

// Apart reports whether the shape tells nodes or GPUs apart that are alike to most others.
func (sh *Shape) Apart() bool { return sh.apart }

// alike reports whether it makes no difference to what fits which of two GPUs is taken.
func alike(b *cluster.Pool, i, j int) bool {
	x, y := &b.GPUs[i], &b.GPUs[j]
	g, h := &b.Node.Spec.GPUs[b.Positions[i]], &b.Node.Spec.GPUs[b.Positions[j]]
	return x.Milli == y.Milli && x.Slices == y.Slices && x.Replicas == y.Replicas && (x.Tasks == 0) == (y.Tasks == 0) &&
		g.Device == h.Device && !g.HasSeats()
}
