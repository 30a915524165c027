// SPDX-License-Identifier: MPL-2.0

package fit

import (
	"fmt"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Near is the GPU with the smallest shortage for a shape.
type Near struct {
	Node *cluster.Node
	GPU  int    // its position among those of the node
	Text string // "lacks 2 GiB and 0.25 of its compute"
}

// Nearest is the GPU that comes nearest, of nodes that take the shape otherwise; false where
// there is none, or a node has room now.
func (sh *Shape) Nearest(s *cluster.Snapshot) (Near, bool) {
	var best Near
	least := int64(-1)
	for _, b := range s.Pools {
		switch sh.Fit(s, b) {
		case Fits:
			return Near{}, false
		case noGPU:
		default:
			continue
		}
		nd := sh.Need(s, b.Kind)
		for i := range b.GPUs {
			if !b.GPUs[i].Open || !sh.Suits(b, i) || nd.Fits(&b.GPUs[i]) {
				continue
			}
			if far := nd.far(&b.GPUs[i]); least < 0 || far < least {
				least, best = far, Near{&b.Node.Spec, b.Positions[i], nd.lacks(&b.GPUs[i], &s.Kinds[b.Kind])}
			}
		}
	}
	return best, least >= 0
}

// far is the largest part of a need that a GPU lacks, in milli.
func (nd *Need) far(c *cluster.GPUState) int64 {
	if nd.Whole {
		return int64(cluster.GPUMilli) - int64(c.Share)
	}
	part := func(need int64, have int32) int64 {
		if need <= int64(have) {
			return 0
		}
		return (need - int64(have)) * cluster.GPUMilli / need
	}
	return max(part(nd.Take.Milli, c.Milli), part(nd.Take.Slices, c.Slices), part(nd.Take.Replicas, c.Replicas))
}

// lacks names the shortage on a GPU.
func (nd *Need) lacks(c *cluster.GPUState, k *cluster.Kind) string {
	switch {
	case nd.Whole && c.Tasks == 1:
		return "is held by a task"
	case nd.Whole:
		return fmt.Sprintf("is held by %d tasks", c.Tasks)
	}
	var list []string
	if short := nd.Take.Slices - int64(c.Slices); short > 0 {
		list = append(list, quota.Memory(short*k.SliceMiB))
	}
	if short := nd.Take.Milli - int64(c.Milli); short > 0 {
		list = append(list, quota.GPUs(short)+" of its compute")
	}
	if short := nd.Take.Replicas - int64(c.Replicas); short > 0 {
		list = append(list, fmt.Sprintf("%d turns", short))
	}
	return "lacks " + strings.Join(list, " and ")
}
