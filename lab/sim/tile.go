// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"slices"
	"strconv"
)

// Tiled is the workload on a cluster with copies of its nodes, with every
// arrival as many times: one sequence after the other, merged by time where the
// tasks have one. The history stays, since the mix of tasks does. It shows what
// a real trace costs on a cluster of another size.
func (w Workload) Tiled(copies int) Workload {
	if copies == 1 {
		return w
	}
	out := Workload{History: w.History}
	for i := range copies {
		suffix := "/" + strconv.Itoa(i)
		for _, n := range w.Nodes {
			n.Name += suffix
			out.Nodes = append(out.Nodes, n)
		}
		for _, t := range w.Arrivals {
			t.Name += suffix
			out.Arrivals = append(out.Arrivals, t)
		}
	}
	slices.SortStableFunc(out.Arrivals, func(a, b Task) int { return cmp.Compare(a.ArriveSecond, b.ArriveSecond) })
	return out
}
