package place

// stock sums up the banks of one kind.
type stock struct {
	gpus    int64
	free    int64         // usable milli
	idle    map[int32]int // number of banks by count of idle GPUs
	largest size          // unless it is to be looked for
	look    bool
}

// size is the most of everything that an empty node of a kind has.
type size struct {
	cpu, memory int64
	gpus        int
}

func (m size) with(b *bank) size {
	return size{
		max(m.cpu, b.node.spec.CPUMHz), max(m.memory, b.node.spec.MemoryMiB), max(m.gpus, len(b.cells)),
	}
}

func (st *stock) add(b *bank) {
	st.gpus += int64(len(b.gpus))
	st.idle[b.idle]++
	st.largest = st.largest.with(b)
}

func (st *stock) remove(b *bank) {
	st.gpus -= int64(len(b.gpus))
	st.free -= b.free
	st.idle[b.idle]--
	st.look = true
}

// biggest is the largest empty node of a kind. Only a node that is gone is a
// reason to look at all.
func (s *Snapshot) biggest(id int32) size {
	st := &s.stock[id]
	if st.look {
		st.look, st.largest = false, size{}
		for _, b := range s.banks {
			if b != nil && b.kind == id {
				st.largest = st.largest.with(b)
			}
		}
	}
	return st.largest
}
