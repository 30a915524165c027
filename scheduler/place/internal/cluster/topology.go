// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/splitmix"
)

// Closeness of two GPUs of a pool: a direct NVLink beats sharing a NUMA node.
const (
	linkNear = 2 // NVLink
	linkNUMA = 1
)

// newLinks tabulates the closeness of every two GPUs; nil when nothing is
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

// EquallyNear reports whether any two of some GPUs are as near to each other as any
// other two, so that it does not matter which of them a task of several gets.
func (n *Node) EquallyNear(gpus []int) bool {
	for i, g := range gpus {
		for _, h := range gpus[:i] {
			if closeness(n, g, h) != closeness(n, gpus[0], gpus[1]) {
				return false
			}
		}
	}
	return true
}

// hasNUMA reports whether the node's GPUs are on more than one NUMA node; on
// one alone NUMA says nothing.
func hasNUMA(spec *Node) bool {
	return slices.ContainsFunc(spec.GPUs, func(g GPU) bool { return g.NUMA != spec.GPUs[0].NUMA })
}

// Nearest picks n of the GPUs that are as close to each other as can be found
// by growing a set from every GPU; the first in order where sets are equal.
func (b *Pool) Nearest(gpus []int, n int) []int {
	if b.links == nil || n >= len(gpus) {
		return gpus[:n]
	}
	var best []int
	top := -1
	for _, seed := range gpus {
		set, sum := b.grow(gpus, seed, n)
		if sum > top {
			best, top = set, sum
		}
	}
	return append(gpus[:0], best...)
}

// grow adds to a seed the GPU with the most links to the set until there are
// n, and returns the sum of their closeness.
func (b *Pool) grow(gpus []int, seed, n int) ([]int, int) {
	set, sum := []int{seed}, 0
	for len(set) < n {
		at, top := -1, -1
		for _, c := range gpus {
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

// Apart is how far a set is from being linked by NVLink throughout, in
// thousandths.
func (b *Pool) Apart(gpus []int) int64 {
	if b.links == nil || len(gpus) < 2 {
		return 1000
	}
	var sum, all int64
	for i, c := range gpus {
		for _, o := range gpus[:i] {
			sum += int64(b.links[c][o])
			all += linkNear
		}
	}
	return 1000 - 1000*sum/all
}

func linksHash(links [][]uint8) uint64 {
	var h splitmix.Source
	for _, row := range links {
		for _, l := range row {
			h.Mix(uint64(l))
		}
	}
	return uint64(h)
}
