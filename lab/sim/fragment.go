// SPDX-License-Identifier: MPL-2.0

package sim

import "math"

// Fragmentation is the part of the free GPU, in percent, that a task drawn from
// the history could not use, at every whole percent of arrived demand: FGD's
// F summed over the nodes, over the free GPU. It depends on the placements
// alone, not on who made them.
func Fragmentation(nodes []Node, history, arrivals []Task, spots []Spot) []Point {
	f := newFGDScore(nodes, history)
	c := newCluster(nodes)
	var arrived int64
	capacity := Capacity(nodes)
	var out []Point
	last := -1
	for i := range arrivals {
		if spots[i].Node >= 0 {
			c.nodes[spots[i].Node].book(&arrivals[i], spots[i].GPUs)
		}
		arrived += arrivals[i].Demand()
		if at := int(math.RoundToEven(percent(arrived, capacity))); at != last {
			last = at
			out = append(out, Point{at, f.cluster(c)})
		}
	}
	return out
}

func (f *fgd) cluster(c *cluster) float64 {
	var frag, free float64
	for i := range c.nodes {
		frag += f.frag(&c.nodes[i])
		for _, g := range c.nodes[i].gpus {
			free += float64(g)
		}
	}
	if free == 0 {
		return 0
	}
	return 100 * frag / free
}
