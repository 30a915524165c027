// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
)

// Kind is what makes GPUs interchangeable for a task. Pools of one kind share
// prices and demand.
type Kind struct {
	Vendor, Model, Type, Profile          string
	Mode                                  gpu.Mode
	Sharing                               gpu.Sharing
	MemoryMiB, SliceMiB, Slices, Replicas int64
}

func kindOf(g *GPU) Kind {
	return Kind{
		Vendor: g.Vendor, Model: g.Model, Type: g.Type, Sharing: g.Sharing, Profile: g.Profile,
		Mode: g.Mode, MemoryMiB: g.MemoryMiB, SliceMiB: g.SliceMiB, Slices: g.Slices, Replicas: g.Replicas,
	}
}

// Named reports whether the name means this kind: the short type, the NVML
// name, or the NVML name as a label (blanks as dashes), case apart.
func (k *Kind) Named(name string) bool {
	label := strings.ReplaceAll(k.Model, " ", "-")
	return strings.EqualFold(name, k.Type) || strings.EqualFold(name, k.Model) || strings.EqualFold(name, label)
}

// Is reports whether a name of a model means the GPU.
func (g *GPU) Is(name string) bool {
	k := kindOf(g)
	return k.Named(name)
}

// GPUState is the free capacity of one GPU of a pool. A GPU that takes no new work
// keeps its books but has share 0.
type GPUState struct {
	Milli    int32 // compute without a guarantee on it
	Slices   int32 // memory slices
	Replicas int32 // turns
	Tasks    int32 // tasks that hold a part
	Share    int32 // usable milli: the scarcer of compute and memory
	Burst    int32 // compute that tasks there are expected to use beyond their promise
	Hot      int32 // the same, and the use measured beyond that
	Busy     int32 // compute that is expected to be in use: promises, and Hot
	Open     bool  // takes new work
}

// Pool is the GPUs of one kind on one node, or the one pool without GPUs that
// every node has when it has none.
type Pool struct {
	ID        int32
	Node      *NodeState
	Kind      int32 // in Snapshot.kinds; -1 without GPUs
	Positions []int // in Node.GPUs, ascending
	GPUs      []GPUState
	Class     int32             // in Snapshot.states; -1: none
	links     [][]uint8         // closeness of every two GPUs; nil: nothing known
	topology  uint64            // hash of links
	Idle      int32             // GPUs of share 1000
	partly    partly            // what the others have free
	share     int32             // the largest of the shares
	Free      int64             // and their sum
	Used      int64             // sum of (compute + memory)/2 allocated, milli
	Measured  int64             // the same as measured; allocated where it is not
	Shares    forecast.StateKey // the part of the GPUs
}

// partly is the most compute and the most memory slices that are free on a GPU
// in use, not necessarily the same one.
type partly struct{ Milli, Slices int32 }

// newPools splits a node's GPUs into pools, in order of first appearance.
func newPools(n *NodeState, intern func(Kind) int32) []*Pool {
	var pools []*Pool
	for i := range n.Spec.GPUs {
		id := intern(kindOf(&n.Spec.GPUs[i]))
		at := slices.IndexFunc(pools, func(b *Pool) bool { return b.Kind == id })
		if at < 0 {
			at = len(pools)
			pools = append(pools, &Pool{Node: n, Kind: id})
		}
		pools[at].Positions = append(pools[at].Positions, i)
		pools[at].GPUs = append(pools[at].GPUs, NewGPUState(&n.Spec.GPUs[i]))
	}
	if pools == nil {
		pools = []*Pool{{Node: n, Kind: -1}}
	}
	for _, b := range pools {
		b.Class = -1
		b.links = newLinks(&n.Spec, b.Positions)
		b.topology = linksHash(b.links)
	}
	return pools
}

// NewGPUState is a GPU with nothing on it.
func NewGPUState(g *GPU) GPUState {
	return GPUState{Milli: GPUMilli, Slices: int32(g.Slices), Replicas: int32(g.Replicas), Open: g.takesWork()}
}

// refresh recomputes the values derived from the GPUs.
func (b *Pool) refresh(k *Kind) {
	b.Idle, b.partly, b.share, b.Free, b.Used, b.Measured = 0, partly{}, 0, 0, 0, 0
	b.Shares = forecast.StateKey{}
	for i := range b.GPUs {
		c := &b.GPUs[i]
		c.Share, c.Hot = 0, c.Burst+int32(b.Node.Spec.GPUs[b.Positions[i]].SurplusMilli)
		c.Busy = c.promised(k) + c.Hot
		if c.Open && !b.Node.Spec.Ineligible {
			c.Share = c.usable(k)
		}
		b.share = max(b.share, c.Share)
		b.Free += int64(c.Share)
		b.Shares = b.Shares.Plus(forecast.KeyOfShare(c.Share))
		compute, memory := c.allocated(k)
		b.Used += (compute + memory) / 2
		b.Measured += b.Node.Spec.GPUs[b.Positions[i]].measured(compute, memory)
		if c.Share == GPUMilli {
			b.Idle++
		} else if c.Open && !b.Node.Spec.Ineligible {
			b.partly.Milli = max(b.partly.Milli, c.Milli)
			b.partly.Slices = max(b.partly.Slices, c.Slices)
		}
	}
}

// usable is the milli of the GPU that a task could still be promised: of
// compute, of memory and of turns the scarcest.
func (c *GPUState) usable(k *Kind) int32 {
	left := max(c.Milli, 0)
	switch {
	case k.Replicas > 0:
		return max(0, int32(int64(c.Replicas)*GPUMilli/k.Replicas))
	case k.Slices > 0:
		return max(0, min(left, int32(int64(c.Slices)*GPUMilli/k.Slices)))
	case c.Tasks > 0:
		return 0
	}
	return left
}

// Part is what of the GPU a task could still be promised, compute and memory apart.
func (c *GPUState) Part(k *Kind) forecast.Part {
	if k.Slices > 0 {
		return forecast.NewPart(max(0, c.Milli), max(0, int32(int64(c.Slices)*GPUMilli/k.Slices)))
	}
	share := c.usable(k)
	return forecast.NewPart(share, share)
}

// allocated is the compute and memory that tasks hold, in thousandths.
func (c *GPUState) allocated(k *Kind) (compute, memory int64) {
	compute = GPUMilli - int64(c.Milli)
	switch {
	case k.Slices > 0:
		memory = (k.Slices - int64(c.Slices)) * GPUMilli / k.Slices
	case k.Replicas > 0:
		memory = (k.Replicas - int64(c.Replicas)) * GPUMilli / k.Replicas
	case c.Tasks > 0:
		memory = GPUMilli
	}
	return compute, memory
}

// Allocates is the compute and memory of a GPU that a take holds, in thousandths.
func (t Take) Allocates(k *Kind) (compute, memory int64) {
	switch {
	case k.Slices > 0:
		memory = t.Slices * GPUMilli / k.Slices
	case k.Replicas > 0:
		memory = t.Replicas * GPUMilli / k.Replicas
	default:
		memory = GPUMilli
	}
	return t.Milli, memory
}

// measured is (compute + memory)/2 as measured, each as given where it is not.
func (g *GPU) measured(compute, memory int64) int64 {
	if g.MeasuredMilli >= 0 {
		compute = g.MeasuredMilli
	}
	if g.MeasuredMemoryMiB >= 0 && g.MemoryMiB > 0 {
		memory = g.MeasuredMemoryMiB * GPUMilli / g.MemoryMiB
	}
	return (compute + memory) / 2
}
