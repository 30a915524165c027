package place

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/splitmix"
)

// classList lists what an index chooses from: classes of pools that are all the same to
// its shape, and which of them changed.
//
// A snapshot keeps two. Most requests ask of a node only a datacenter, a pool and
// capacity, and see classes: pools in the same state. There are far fewer of
// these than pools, and a pool that enters a class which an index knows costs it
// nothing.
// Requests that name nodes or have constraints see every pool as a class of its
// own.
type classList struct {
	classes []poolClass // by class ID
	first   []int32     // ID of the first pool by class ID; of an empty class any
	log     ranking.Log // of class IDs
	ordered bool        // classes are in the order of their pools
}

// poolClass is pools in one state, in 64 bytes.
type poolClass struct {
	pools []int32 // IDs, ascending
	born  int64   // position in the log since which the state is the same
	stamp int64   // position of the last entry in the log

	// What most shapes that do not fit lack, so that no pool is looked at.
	cpu, memory int64
	kind        int32
	share       int32 // the largest of a GPU
}

// note logs that a class stands for another state, or has become empty, or is
// empty no longer.
func (f *classList) note(id int32) { f.classes[id].stamp = f.log.Add(id) }

// renew notes the state of a pool as that of a class.
func (f *classList) renew(id int32, b *gpuPool) {
	f.note(id)
	cl := &f.classes[id]
	cl.born = cl.stamp
	cl.cpu, cl.memory, cl.kind, cl.share = b.node.cpu, b.node.memory, b.kind, b.share
}

// stateClasses is the list of pools by state. Empty classes are kept for a while:
// work that ends often takes a node back to a state that was seen before.
type stateClasses struct {
	classList
	ids    map[classKey]int32
	keys   []classKey // by class ID
	vacant []int32    // classes that may be empty, in the order of becoming so
	queued []bool     // by class ID: is in vacant
}

// classKey identifies the state of a pool by a hash of 128 bits.
type classKey struct{ a, b uint64 }

// keptVacant is how many empty classes are kept beyond one in sixteen.
const keptVacant = 64

// put makes a pool a member of the class of its state alone.
func (c *stateClasses) put(b *gpuPool) {
	key := b.classKey()
	if b.class >= 0 && c.keys[b.class] == key {
		return
	}
	c.remove(b)
	id, ok := c.ids[key]
	if !ok {
		id = c.create(key, b)
	}
	b.class = id
	cl := &c.classes[id]
	if ok && len(cl.pools) == 0 {
		c.note(id)
	}
	at, _ := slices.BinarySearch(cl.pools, b.id)
	cl.pools = slices.Insert(cl.pools, at, b.id)
	c.first[id] = cl.pools[0]
}

// remove takes a pool out of its class.
func (c *stateClasses) remove(b *gpuPool) {
	if b.class < 0 {
		return
	}
	id := b.class
	b.class = -1
	cl := &c.classes[id]
	if at, _ := slices.BinarySearch(cl.pools, b.id); at == 0 && len(cl.pools) > 1 {
		cl.pools = cl.pools[1:] // placements take the first of many
	} else {
		cl.pools = slices.Delete(cl.pools, at, at+1)
	}
	if len(cl.pools) > 0 {
		c.first[id] = cl.pools[0]
		return
	}
	c.note(id)
	if !c.queued[id] {
		c.queued[id] = true
		c.vacant = append(c.vacant, id)
	}
}

// create returns a new class for the state of a pool, or makes one of an old
// class that is empty, and notes it.
func (c *stateClasses) create(key classKey, b *gpuPool) int32 {
	id := c.spare()
	if id < 0 {
		id = int32(len(c.classes))
		c.classes, c.first = append(c.classes, poolClass{}), append(c.first, b.id)
		c.keys, c.queued = append(c.keys, classKey{}), append(c.queued, false)
	} else {
		delete(c.ids, c.keys[id])
	}
	c.ids[key], c.keys[id] = id, key
	c.renew(id, b)
	return id
}

// spare returns an empty class to use anew, or -1 while there are few.
func (c *stateClasses) spare() int32 {
	for len(c.vacant) > len(c.classes)/16+keptVacant {
		id := c.vacant[0]
		c.vacant = c.vacant[1:]
		c.queued[id] = false
		if len(c.classes[id].pools) == 0 {
			return id
		}
	}
	return -1
}

// classKey is a hash of all that a request which names no nodes and has no
// constraints can see of a pool. The order of the GPUs matters only where they
// are linked.
func (b *gpuPool) classKey() classKey {
	n := b.node
	var host splitmix.Source
	host.Mix(uint64(b.kind)) // one by one: as a seed it would cancel out the first
	host.Mix(uint64(n.group))
	for _, v := range [...]int64{n.cpu, n.memory, n.spec.CPUMHz, n.spec.MemoryMiB, b.measured, int64(len(n.holders))} {
		host.Mix(uint64(v))
	}
	host.Mix(bit(n.spec.Ineligible) | bit(b == n.pools[0])<<1)
	key := classKey{host.Next(), host.Next()}
	for i := range b.gpus {
		c := &b.gpus[i]
		h := splitmix.Source(b.topology)
		if b.links != nil {
			h.Mix(uint64(i))
		}
		h.Mix(uint64(c.milli)<<32 | uint64(uint32(c.slices)))
		h.Mix(uint64(c.replicas)<<32 | uint64(c.hot)<<2 | bit(c.tasks > 0)<<1 | bit(c.open))
		key.a += h.Next()
		key.b += h.Next()
	}
	return key
}

func bit(set bool) uint64 {
	if set {
		return 1
	}
	return 0
}
