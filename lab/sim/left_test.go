// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"math"
	"testing"
)

// Why the default trace leaves GPUs idle, as docs/design/placement-study.md tells: what is
// free lies beside tasks of 810 milli, no task is small enough for it, and
// hardly ever is it CPU or memory alone that is missing.
func TestWhatStaysFree(t *testing.T) {
	openbDir(t)
	w := drawn(t, 0, 1)
	r := replayBalanced(t, &w)
	c := newCluster(w.Nodes)
	refused := map[taskKey]*Task{}
	small := 0
	for i, s := range r.Spots {
		k := &w.Arrivals[i]
		if s.Node >= 0 {
			c.nodes[s.Node].book(k, s.GPUs)
			continue
		}
		refused[keyOf(k)] = k
		if k.GPUMilli <= 190 {
			small++
		}
	}
	var free, besideLarge int64
	for _, m := range c.nodes {
		for _, g := range m.gpus {
			free += g
			if g == 190 {
				besideLarge += g
			}
		}
	}
	pairs, memory, cpu := 0, 0, 0
	for _, k := range refused {
		for i := range c.nodes {
			pairs++
			m := c.nodes[i]
			if m.memory = math.MaxInt64; m.fits(k) {
				memory++
			}
			m = c.nodes[i]
			if m.cpu = math.MaxInt64; m.fits(k) {
				cpu++
			}
		}
	}
	capacity := Capacity(w.Nodes)
	t.Logf("%.2f%% stay free, %.2f%% as 190 milli of a GPU; %d tasks of up to 190 milli were refused", percent(free, capacity), percent(besideLarge, capacity), small)
	t.Logf("of %d pairs of a refused shape and a node %d lack memory alone, %d CPU alone", pairs, memory, cpu)
	if small > 0 || 2*besideLarge < free || 100*(memory+cpu) > pairs {
		t.Error("that is not what docs/design/placement-study.md says")
	}
}
