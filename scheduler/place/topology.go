package place

import "slices"

// Closeness of two GPUs of a bank: a direct NVLink beats sharing a NUMA node.
const (
	linkNear = 2 // NVLink
	linkNUMA = 1
)

// newLinks tabulates the closeness of every two cells; nil when nothing is
// known about any.
func newLinks(spec *Node, gpus []int) [][]uint8 {
	links := make([][]uint8, len(gpus))
	known := false
	for i, g := range gpus {
		links[i] = make([]uint8, len(gpus))
		for j, h := range gpus {
			links[i][j] = closeness(spec, g, h)
			known = known || (i != j && links[i][j] > 0)
		}
	}
	if !known {
		return nil
	}
	return links
}

func closeness(spec *Node, g, h int) uint8 {
	a, b := &spec.GPUs[g], &spec.GPUs[h]
	switch {
	case slices.Contains(a.Peers, h) || slices.Contains(b.Peers, g):
		return linkNear
	case a.NUMA >= 0 && a.NUMA == b.NUMA && hasNUMA(spec):
		return linkNUMA
	}
	return 0
}

// hasNUMA reports whether the node's GPUs are on more than one NUMA node; on
// one alone NUMA says nothing.
func hasNUMA(spec *Node) bool {
	return slices.ContainsFunc(spec.GPUs, func(g GPU) bool { return g.NUMA != spec.GPUs[0].NUMA })
}

// nearest picks n of the cells that are as close to each other as can be found
// by growing a set from every cell; the first in order where sets are equal.
func (b *bank) nearest(cells []int, n int) []int {
	if b.links == nil || n >= len(cells) {
		return cells[:n]
	}
	var best []int
	top := -1
	for _, seed := range cells {
		set, sum := b.grow(cells, seed, n)
		if sum > top {
			best, top = set, sum
		}
	}
	return append(cells[:0], best...)
}

// grow adds to a seed the cell with the most links to the set until there are
// n, and returns the sum of their closeness.
func (b *bank) grow(cells []int, seed, n int) ([]int, int) {
	set, sum := []int{seed}, 0
	for len(set) < n {
		at, top := -1, -1
		for _, c := range cells {
			if slices.Contains(set, c) {
				continue
			}
			links := 0
			for _, o := range set {
				links += int(b.links[c][o])
			}
			if links > top {
				at, top = c, links
			}
		}
		set, sum = append(set, at), sum+top
	}
	return set, sum
}

// apart is how far a set is from being linked by NVLink throughout, in
// thousandths.
func (b *bank) apart(cells []int) int64 {
	if b.links == nil || len(cells) < 2 {
		return 1000
	}
	var sum, all int64
	for i, c := range cells {
		for _, o := range cells[:i] {
			sum += int64(b.links[c][o])
			all += linkNear
		}
	}
	return 1000 - 1000*sum/all
}

func linksHash(links [][]uint8) uint64 {
	var h splitmix
	for _, row := range links {
		for _, l := range row {
			h.mix(uint64(l))
		}
	}
	return h.state
}
