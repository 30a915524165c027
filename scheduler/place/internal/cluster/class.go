// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/splitmix"
)

// Classes lists what an index chooses from: classes of pools that are all the same to
// its shape, and which of them changed.
//
// A snapshot keeps two. Most requests ask of a node only a datacenter, a pool and
// capacity, and see classes: pools in the same state. There are far fewer of
// these than pools, and a pool that enters a class which an index knows costs it
// nothing.
// Requests that name nodes or have constraints see every pool as a class of its
// own.
type Classes struct {
	List    []Class     // by class ID
	First   []int32     // ID of the first pool by class ID; of an empty class any
	Log     ranking.Log // of class IDs
	Ordered bool        // classes are in the order of their pools
}

// Class is pools in one state, in 64 bytes.
type Class struct {
	Pools []int32 // IDs, ascending
	Born  int64   // position in the log since which the state is the same
	Stamp int64   // position of the last entry in the log

	// What most shapes that do not fit lack, so that no pool is looked at.
	CPU, Memory int64
	Kind        int32
	Share       int32 // the largest of a GPU
}

// logChange logs that a class stands for another state, or has become empty, or is
// empty no longer.
func (f *Classes) logChange(id int32) { f.List[id].Stamp = f.Log.Add(id) }

// renew notes the state of a pool as that of a class.
func (f *Classes) renew(id int32, b *Pool) {
	f.logChange(id)
	cl := &f.List[id]
	cl.Born = cl.Stamp
	cl.CPU, cl.Memory, cl.Kind, cl.Share = b.Node.CPU, b.Node.Memory, b.Kind, b.share
}

// stateClasses is the list of pools by state. Empty classes are kept for a while:
// work that ends often takes a node back to a state that was seen before.
type stateClasses struct {
	Classes
	ids    map[classKey]int32
	keys   []classKey // by class ID
	vacant []int32    // classes that may be empty, in the order of becoming so
	queued []bool     // by class ID: is in vacant
}

// classKey identifies the state of a pool by a hash of 128 bits.
type classKey struct{ a, b uint64 }

// KeptVacant is how many empty classes are kept beyond one in sixteen.
const KeptVacant = 64

// put makes a pool a member of the class of its state alone.
func (c *stateClasses) put(b *Pool) {
	key := b.classKey()
	if b.Class >= 0 && c.keys[b.Class] == key {
		return
	}
	c.remove(b)
	id, ok := c.ids[key]
	if !ok {
		id = c.create(key, b)
	}
	b.Class = id
	cl := &c.List[id]
	if ok && len(cl.Pools) == 0 {
		c.logChange(id)
	}
	at, _ := slices.BinarySearch(cl.Pools, b.ID)
	cl.Pools = slices.Insert(cl.Pools, at, b.ID)
	c.First[id] = cl.Pools[0]
}

// remove takes a pool out of its class.
func (c *stateClasses) remove(b *Pool) {
	if b.Class < 0 {
		return
	}
	id := b.Class
	b.Class = -1
	cl := &c.List[id]
	if at, _ := slices.BinarySearch(cl.Pools, b.ID); at == 0 && len(cl.Pools) > 1 {
		cl.Pools = cl.Pools[1:] // placements take the first of many
	} else {
		cl.Pools = slices.Delete(cl.Pools, at, at+1)
	}
	if len(cl.Pools) > 0 {
		c.First[id] = cl.Pools[0]
		return
	}
	c.logChange(id)
	if !c.queued[id] {
		c.queued[id] = true
		c.vacant = append(c.vacant, id)
	}
}

// create returns a new class for the state of a pool, or makes one of an old
// class that is empty, and notes it.
func (c *stateClasses) create(key classKey, b *Pool) int32 {
	id := c.spare()
	if id < 0 {
		id = int32(len(c.List))
		c.List, c.First = append(c.List, Class{}), append(c.First, b.ID)
		c.keys, c.queued = append(c.keys, classKey{}), append(c.queued, false)
	} else {
		delete(c.ids, c.keys[id])
	}
	c.ids[key], c.keys[id] = id, key
	c.renew(id, b)
	return id
}

// spare returns an empty class to reuse, or -1 while there are few.
func (c *stateClasses) spare() int32 {
	for len(c.vacant) > len(c.List)/16+KeptVacant {
		id := c.vacant[0]
		c.vacant = c.vacant[1:]
		c.queued[id] = false
		if len(c.List[id].Pools) == 0 {
			return id
		}
	}
	return -1
}

// classKey is a hash of all that a request which names no nodes and has no
// constraints can see of a pool. The order of the GPUs matters only where they
// are linked.
func (b *Pool) classKey() classKey {
	n := b.Node
	var host splitmix.Source
	host.Mix(uint64(b.Kind)) // one by one: as a seed it would cancel out the first
	host.Mix(uint64(n.group))
	for _, v := range [...]int64{n.CPU, n.Memory, n.Spec.CPUMHz, n.Spec.MemoryMiB, b.Measured, int64(len(n.Holders))} {
		host.Mix(uint64(v))
	}
	host.Mix(bit(n.Spec.Ineligible) | bit(b == n.Pools[0])<<1)
	key := classKey{host.Next(), host.Next()}
	for i := range b.GPUs {
		c := &b.GPUs[i]
		h := splitmix.Source(b.topology)
		if b.links != nil {
			h.Mix(uint64(i))
		}
		h.Mix(uint64(c.Milli)<<32 | uint64(uint32(c.Slices)))
		h.Mix(uint64(c.Replicas)<<32 | uint64(c.Hot)<<2 | bit(c.Tasks > 0)<<1 | bit(c.Open))
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
