package place

import (
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
)

// kind is what makes GPUs interchangeable for a task. Banks of one kind share
// prices and demand.
type kind struct {
	Vendor, Model, Type, Profile          string
	Mode                                  gpu.Mode
	Sharing                               gpu.Sharing
	MemoryMiB, SliceMiB, Slices, Replicas int64
}

func kindOf(g *GPU) kind {
	return kind{
		Vendor: g.Vendor, Model: g.Model, Type: g.Type, Sharing: g.Sharing, Profile: g.Profile,
		Mode: g.Mode, MemoryMiB: g.MemoryMiB, SliceMiB: g.SliceMiB, Slices: g.Slices, Replicas: g.Replicas,
	}
}

// named reports whether the name means this kind: the short type, the NVML
// name, or the NVML name as a label (blanks as dashes), case apart.
func (k *kind) named(name string) bool {
	label := strings.ReplaceAll(k.Model, " ", "-")
	return strings.EqualFold(name, k.Type) || strings.EqualFold(name, k.Model) || strings.EqualFold(name, label)
}

// Is reports whether a name of a model means the GPU.
func (g *GPU) Is(name string) bool {
	k := kindOf(g)
	return k.named(name)
}

// gpuState is what is free on one GPU of a pool. A GPU that takes no new work
// keeps its books but has share 0.
type gpuState struct {
	milli    int32 // compute without a guarantee on it
	slices   int32 // memory slices
	replicas int32 // turns
	tasks    int32 // tasks that hold a part
	share    int32 // usable milli: the scarcer of compute and memory
	hot      int32 // compute as measured, milli; 0 where it is not
	open     bool  // takes new work
}

// gpuPool is the GPUs of one kind on one node, or the one pool without GPUs that
// every node has when it has none.
type gpuPool struct {
	id        int32
	node      *nodeState
	kind      int32 // in Snapshot.kinds; -1 without GPUs
	positions []int // in Node.GPUs, ascending
	gpus      []gpuState
	class     int32             // in Snapshot.states; -1: none
	links     [][]uint8         // closeness of every two GPUs; nil: nothing known
	topology  uint64            // hash of links
	idle      int32             // GPUs of share 1000
	partly    partly            // what the others have free
	share     int32             // the largest of the shares
	free      int64             // and their sum
	used      int64             // sum of (compute + memory)/2 allocated, milli
	measured  int64             // the same as measured; allocated where it is not
	shares    forecast.StateKey // the part of the GPUs
}

// partly is the most compute and the most memory slices that are free on a GPU
// in use, not necessarily the same one.
type partly struct{ milli, slices int32 }

// newPools splits a node's GPUs into pools, in order of first appearance.
func newPools(n *nodeState, intern func(kind) int32) []*gpuPool {
	var pools []*gpuPool
	for i := range n.spec.GPUs {
		id := intern(kindOf(&n.spec.GPUs[i]))
		at := slices.IndexFunc(pools, func(b *gpuPool) bool { return b.kind == id })
		if at < 0 {
			at = len(pools)
			pools = append(pools, &gpuPool{node: n, kind: id})
		}
		pools[at].positions = append(pools[at].positions, i)
		pools[at].gpus = append(pools[at].gpus, newGPUState(&n.spec.GPUs[i]))
	}
	if pools == nil {
		pools = []*gpuPool{{node: n, kind: -1}}
	}
	for _, b := range pools {
		b.class = -1
		b.links = newLinks(&n.spec, b.positions)
		b.topology = linksHash(b.links)
	}
	return pools
}

func newGPUState(g *GPU) gpuState {
	return gpuState{milli: gpuMilli, slices: int32(g.Slices), replicas: int32(g.Replicas), open: g.takesWork()}
}

// refresh recomputes what is derived from the GPUs.
func (b *gpuPool) refresh(k *kind) {
	b.idle, b.partly, b.share, b.free, b.used, b.measured = 0, partly{}, 0, 0, 0, 0
	b.shares = forecast.StateKey{}
	for i := range b.gpus {
		c := &b.gpus[i]
		c.share, c.hot = 0, int32(max(0, b.node.spec.GPUs[b.positions[i]].MeasuredMilli))
		if c.open && !b.node.spec.Ineligible {
			c.share = c.usable(k)
		}
		b.share = max(b.share, c.share)
		b.free += int64(c.share)
		b.shares = b.shares.Plus(forecast.KeyOfShare(c.share))
		compute, memory := c.allocated(k)
		b.used += (compute + memory) / 2
		b.measured += b.node.spec.GPUs[b.positions[i]].measured(compute, memory)
		if c.share == gpuMilli {
			b.idle++
		} else if c.open && !b.node.spec.Ineligible {
			b.partly.milli = max(b.partly.milli, c.milli)
			b.partly.slices = max(b.partly.slices, c.slices)
		}
	}
}

// usable is the milli of the GPU that a task could still be promised: of
// compute, of memory and of turns the scarcest.
func (c *gpuState) usable(k *kind) int32 {
	left := max(c.milli, 0)
	switch {
	case k.Replicas > 0:
		return max(0, int32(int64(c.replicas)*gpuMilli/k.Replicas))
	case k.Slices > 0:
		return max(0, min(left, int32(int64(c.slices)*gpuMilli/k.Slices)))
	case c.tasks > 0:
		return 0
	}
	return left
}

// part is what of the GPU a task could still be promised, compute and memory apart.
func (c *gpuState) part(k *kind) forecast.Part {
	if k.Slices > 0 {
		return forecast.NewPart(max(0, c.milli), max(0, int32(int64(c.slices)*gpuMilli/k.Slices)))
	}
	share := c.usable(k)
	return forecast.NewPart(share, share)
}

// allocated is the compute and memory that tasks hold, in thousandths.
func (c *gpuState) allocated(k *kind) (compute, memory int64) {
	compute = gpuMilli - int64(c.milli)
	switch {
	case k.Slices > 0:
		memory = (k.Slices - int64(c.slices)) * gpuMilli / k.Slices
	case k.Replicas > 0:
		memory = (k.Replicas - int64(c.replicas)) * gpuMilli / k.Replicas
	case c.tasks > 0:
		memory = gpuMilli
	}
	return compute, memory
}

// measured is (compute + memory)/2 as measured, each as given where it is not.
func (g *GPU) measured(compute, memory int64) int64 {
	if g.MeasuredMilli >= 0 {
		compute = g.MeasuredMilli
	}
	if g.MeasuredMemoryMiB >= 0 && g.MemoryMiB > 0 {
		memory = g.MeasuredMemoryMiB * gpuMilli / g.MemoryMiB
	}
	return (compute + memory) / 2
}
