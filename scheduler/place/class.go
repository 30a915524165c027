package place

import "slices"

// feed lists what an index chooses from: sets of banks that are all the same to
// its shape, and which of them changed.
//
// A snapshot keeps two. Most requests ask of a node only a datacenter, a pool and
// capacity, and see classes: banks in the same state. There are far fewer of
// these than banks, and a bank that enters a class which an index knows costs it
// nothing.
// Requests that name nodes or have constraints see every bank as a set of its
// own.
type feed struct {
	sets    []bankSet // by set ID
	first   []int32   // ID of the first bank by set ID; of an empty set any
	log     changeLog // of set IDs
	ordered bool      // sets are in the order of their banks
}

// bankSet is banks in one state, in 64 bytes.
type bankSet struct {
	banks []int32 // IDs, ascending
	born  int64   // position in the log since which the state is the same
	stamp int64   // position of the last entry in the log

	// What most shapes that do not fit lack, so that no bank is looked at.
	cpu, memory int64
	kind        int32
	share       int32 // the largest of a GPU
}

// lacks reports that a set is short of something, without being exact.
func (set *bankSet) lacks(sh *shape, s *Snapshot) bool {
	if sh.req.CPUMHz > set.cpu || sh.req.MemoryMiB > set.memory {
		return true
	}
	if sh.req.GPUs == 0 {
		return false
	}
	if set.kind < 0 {
		return true
	}
	nd := sh.need(s, set.kind)
	return !nd.ok || set.share < nd.least
}

// note logs that a set stands for another state, or has become empty, or is
// empty no longer.
func (f *feed) note(id int32) { f.sets[id].stamp = f.log.add(id) }

// renew notes the state of a bank as that of a set.
func (f *feed) renew(id int32, b *bank) {
	f.note(id)
	set := &f.sets[id]
	set.born = set.stamp
	set.cpu, set.memory, set.kind, set.share = b.node.cpu, b.node.memory, b.kind, b.share
}

// classes is the feed of banks by state. Empty classes are kept for a while:
// work that ends often takes a node back to a state that was seen before.
type classes struct {
	feed
	ids    map[classKey]int32
	keys   []classKey // by class ID
	vacant []int32    // classes that may be empty, in the order of becoming so
	queued []bool     // by class ID: is in vacant
}

// classKey identifies the state of a bank by a hash of 128 bits.
type classKey struct{ a, b uint64 }

// keptVacant is how many empty classes are kept beyond one in sixteen.
const keptVacant = 64

// put makes a bank a member of the class of its state alone.
func (c *classes) put(b *bank) {
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
	set := &c.sets[id]
	if len(set.banks) == 0 {
		c.note(id)
	}
	at, _ := slices.BinarySearch(set.banks, b.id)
	set.banks = slices.Insert(set.banks, at, b.id)
	c.first[id] = set.banks[0]
}

// remove takes a bank out of its class.
func (c *classes) remove(b *bank) {
	if b.class < 0 {
		return
	}
	id := b.class
	b.class = -1
	set := &c.sets[id]
	if at, _ := slices.BinarySearch(set.banks, b.id); at == 0 && len(set.banks) > 1 {
		set.banks = set.banks[1:] // placements take the first of many
	} else {
		set.banks = slices.Delete(set.banks, at, at+1)
	}
	if len(set.banks) > 0 {
		c.first[id] = set.banks[0]
		return
	}
	c.note(id)
	if !c.queued[id] {
		c.queued[id] = true
		c.vacant = append(c.vacant, id)
	}
}

// create returns a new class for the state of a bank, or makes one of an old
// class that is empty.
func (c *classes) create(key classKey, b *bank) int32 {
	id := c.spare()
	if id < 0 {
		id = int32(len(c.sets))
		c.sets, c.first = append(c.sets, bankSet{}), append(c.first, b.id)
		c.keys, c.queued = append(c.keys, classKey{}), append(c.queued, false)
	} else {
		delete(c.ids, c.keys[id])
	}
	c.ids[key], c.keys[id] = id, key
	c.renew(id, b)
	return id
}

// spare returns an empty class to use anew, or -1 while there are few.
func (c *classes) spare() int32 {
	for len(c.vacant) > len(c.sets)/16+keptVacant {
		id := c.vacant[0]
		c.vacant = c.vacant[1:]
		c.queued[id] = false
		if len(c.sets[id].banks) == 0 {
			return id
		}
	}
	return -1
}

// classKey is a hash of all that a request which names no nodes and has no
// constraints can see of a bank. The order of the GPUs matters only where they
// are linked.
func (b *bank) classKey() classKey {
	n := b.node
	host := splitmix{uint64(b.kind)}
	host.mix(uint64(n.group))
	for _, v := range [...]int64{n.cpu, n.memory, n.spec.CPUMHz, n.spec.MemoryMiB, b.measured, int64(len(n.holders))} {
		host.mix(uint64(v))
	}
	host.mix(bit(n.spec.Ineligible) | bit(b == n.banks[0])<<1)
	key := classKey{host.next(), host.next()}
	for i := range b.cells {
		c := &b.cells[i]
		h := splitmix{b.topology}
		if b.links != nil {
			h.mix(uint64(i))
		}
		h.mix(uint64(c.milli)<<32 | uint64(uint32(c.slices)))
		h.mix(uint64(c.replicas)<<32 | bit(c.tasks > 0)<<1 | bit(c.open))
		key.a += h.next()
		key.b += h.next()
	}
	return key
}

func bit(set bool) uint64 {
	if set {
		return 1
	}
	return 0
}
