package decide

import (
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// block is one device block of an alloc, as far as it decides where the alloc
// can run.
type block struct {
	Name  string // device name: type, vendor/type or vendor/type/name
	Count int64
	// Milli is the compute that each instance's GPU must keep free.
	Milli int64
	Model string // type or model; empty: any
	// Of is how many slices the GPU must have; 0: any number. SliceMiB is the
	// least memory of each.
	Of       int64
	SliceMiB int64
	Sharing  gpu.Sharing
}

// names reports whether a device name means a device group.
func names(name, group string) bool {
	if name == group || strings.HasPrefix(group, name+"/") {
		return true
	}
	_, rest, _ := strings.Cut(group, "/") // without the vendor
	deviceType, _, _ := strings.Cut(rest, "/")
	return name == deviceType
}

// suits reports whether the block may be served from a GPU, full or not.
func (b block) suits(g *view.GPU) bool {
	return names(b.Name, g.Group) && named(g, b.Model) && (b.Of == 0 || b.Of == int64(len(g.Instances))) &&
		g.SliceMemoryMiB >= b.SliceMiB && (b.Sharing == "" || string(b.Sharing) == g.Sharing)
}

// named reports whether a GPU goes by a name that a user may write: its type,
// its full name, or that with dashes for blanks.
func named(g *view.GPU, model string) bool {
	if model == "" {
		return true
	}
	return strings.EqualFold(model, g.Type) || strings.EqualFold(model, g.Model) ||
		strings.EqualFold(model, strings.ReplaceAll(g.Model, " ", "-"))
}

// room is what is free on a node: instances and compute per GPU.
type room struct {
	cpu, memory int64
	instances   []int64
	milli       []int64
}

// roomOf is a node's room with some usages on it.
func roomOf(n *nomad.Node, usages []place.Usage) room {
	r := room{
		cpu: n.Plan.CPUMHz, memory: n.Plan.MemoryMiB,
		instances: make([]int64, len(n.Plan.GPUs)), milli: make([]int64, len(n.Plan.GPUs)),
	}
	for i := range n.View.GPUs {
		r.instances[i], r.milli[i] = int64(len(n.View.GPUs[i].Instances)), gpu.MilliPerGPU
	}
	for i := range usages {
		r.take(n, &usages[i], 1)
	}
	return r
}

// take books (sign 1) or frees (sign -1) a usage.
func (r *room) take(n *nomad.Node, u *place.Usage, sign int64) {
	r.cpu -= sign * u.CPUMHz
	r.memory -= sign * u.MemoryMiB
	for _, t := range u.Takes {
		r.milli[t.GPU] -= sign * t.Milli
		r.instances[t.GPU] -= sign * instancesOf(&n.Plan.GPUs[t.GPU], t)
	}
}

// instancesOf is how many of Nomad's instances a take holds.
func instancesOf(g *place.GPU, t place.Take) int64 {
	switch g.Mode {
	case gpu.ModeSlice:
		return t.Slices
	case gpu.ModeShared:
		return t.Replicas
	}
	return 1
}

// serve reports whether a node's room can take the blocks of one alloc. GPUs
// that take no new work do not count. Nomad serves a block from one device
// group, and so does serve; the fullest group that suits goes first.
func (r room) serve(n *nomad.Node, cpu, memory int64, blocks []block) bool {
	if cpu > r.cpu || memory > r.memory {
		return false
	}
	instances, milli := append([]int64(nil), r.instances...), append([]int64(nil), r.milli...)
	for _, b := range blocks {
		if !serveOne(n, b, instances, milli) {
			return false
		}
	}
	return true
}

// serveOne takes one block out of what is free. The GPUs of a group lie side
// by side, since a node's GPUs are ordered by group.
func serveOne(n *nomad.Node, b block, instances, milli []int64) bool {
	best, bestEnd, least := -1, -1, int64(0)
	for from := 0; from < len(n.View.GPUs); {
		end, have := from, int64(0)
		for ; end < len(n.View.GPUs) && n.View.GPUs[end].Group == n.View.GPUs[from].Group; end++ {
			if b.usable(n, end, milli) {
				have += instances[end]
			}
		}
		if have >= b.Count && (best < 0 || have < least) {
			best, bestEnd, least = from, end, have
		}
		from = end
	}
	if best < 0 {
		return false
	}
	left := b.Count
	for i := best; i < bestEnd && left > 0; i++ {
		if b.usable(n, i, milli) && instances[i] > 0 {
			take := min(left, instances[i])
			instances[i] -= take
			milli[i] -= b.Milli
			left -= take
		}
	}
	return true
}

// usable reports whether a GPU may serve the block, as far as it has instances.
func (b block) usable(n *nomad.Node, gpu int, milli []int64) bool {
	return milli[gpu] >= b.Milli && open(&n.Plan.GPUs[gpu]) && b.suits(&n.View.GPUs[gpu])
}

func open(g *place.GPU) bool { return !g.Unhealthy && !g.Cordoned }
