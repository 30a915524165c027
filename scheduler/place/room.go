package place

import "slices"

// room is a copy of what a bank has free, to try evictions on.
type room struct {
	shape *shape
	bank  *bank
	need  *need
	cpu   int64
	mem   int64
	cells []cell
	owed  Charge // what the request's own queue has yet to give up
	e     *eviction
}

func (e *eviction) room(sh *shape, b *bank) *room {
	e.rank()
	r := &room{e: e, owed: e.deficit, shape: sh, bank: b, cpu: b.node.cpu, mem: b.node.memory, cells: slices.Clone(b.cells)}
	if sh.req.GPUs > 0 {
		r.need = sh.need(e.p.snap, b.kind)
	}
	return r
}

// add frees (sign 1) or takes back (sign -1) what a usage holds.
func (r *room) add(u *Usage, sign int64) {
	r.cpu += sign * u.CPUMHz
	r.mem += sign * u.MemoryMiB
	if r.e.deficit != (Charge{}) && u.Queue == r.e.r.Queue {
		r.owed = r.owed.Plus(u.charge.Times(-sign))
	}
	for _, t := range u.Takes {
		at := r.bank.node.where[t.GPU]
		if at.bank != r.bank {
			continue
		}
		c := &r.cells[at.cell]
		c.milli += int32(sign * t.Milli)
		c.slices += int32(sign * t.Slices)
		c.replicas += int32(sign * t.Replicas)
		c.tasks -= int32(sign)
	}
}

// empty frees what all candidates hold and reports whether the shape fits then.
func (r *room) empty(candidates []*Usage) bool {
	for _, u := range candidates {
		r.add(u, 1)
	}
	return r.fits()
}

func (r *room) fits() bool {
	if r.owed.Milli > 0 || r.owed.MemoryMiB > 0 || r.shape.req.CPUMHz > r.cpu || r.shape.req.MemoryMiB > r.mem {
		return false
	}
	found := 0
	for i := range r.cells {
		if r.need != nil && r.cells[i].holds(r.need) && r.shape.suits(r.bank, i) {
			found++
		}
	}
	return found >= r.shape.req.GPUs
}

// touches reports whether a usage holds a part of one of a set of cells.
func (r *room) touches(u *Usage, cells uint64) bool {
	return slices.ContainsFunc(u.Takes, func(t Take) bool {
		at := r.bank.node.where[t.GPU]
		return at.bank == r.bank && cells>>at.cell&1 == 1
	})
}

// value is how much of what the shape needs a usage would free, for choosing
// few large victims over many small ones.
func (r *room) value(u *Usage) int64 {
	var sum int64
	for _, t := range u.Takes {
		if r.need != nil && r.bank.node.where[t.GPU].bank == r.bank {
			sum += gpuMilli * max(t.Milli, t.Slices, t.Replicas)
		}
	}
	return sum + min(u.CPUMHz, r.shape.req.CPUMHz)
}
