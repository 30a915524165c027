package place

// memo remembers expected waste by state: an open-addressing hash table that
// is emptied when it has grown too large, so that its memory is bounded.
type memo struct {
	slots []memoSlot
	count int
}

type memoSlot struct {
	key   stateKey
	value int32
	used  bool
}

// stateKey identifies the state of a bank: kind, free CPU in steps, and the
// usable shares of its GPUs. It is a 128-bit hash; that two states share one
// by chance is less likely than a memory error.
type stateKey struct{ a, b uint64 }

// maxMemo bounds the number of remembered states (32 bytes each).
const maxMemo = 1 << 20

func stateKeyOf(kind int32, cpuSteps int64, shares []int32) stateKey {
	seed := splitmix{uint64(kind)<<40 ^ uint64(cpuSteps)}
	h := stateKey{seed.next(), seed.next()}
	for _, v := range shares {
		h.a = (h.a ^ uint64(v)) * 0xff51afd7ed558ccd
		h.a ^= h.a >> 32
		h.b = (h.b + uint64(v)) * 0xc4ceb9fe1a85ec53
		h.b ^= h.b >> 29
	}
	return h
}

// clear forgets everything and keeps the memory.
func (m *memo) clear() {
	clear(m.slots)
	m.count = 0
}

func (m *memo) reset() { m.slots, m.count = nil, 0 }

func (m *memo) get(k stateKey) (int32, bool) {
	if len(m.slots) == 0 {
		return 0, false
	}
	mask := uint64(len(m.slots) - 1)
	for i := (k.a ^ k.b) & mask; m.slots[i].used; i = (i + 1) & mask {
		if m.slots[i].key == k {
			return m.slots[i].value, true
		}
	}
	return 0, false
}

func (m *memo) put(k stateKey, v int32) {
	if m.count >= maxMemo {
		m.reset()
	}
	if 2*m.count >= len(m.slots) {
		m.rehash(max(1024, 2*len(m.slots)))
	}
	m.insert(memoSlot{k, v, true})
	m.count++
}

func (m *memo) insert(s memoSlot) {
	mask := uint64(len(m.slots) - 1)
	i := (s.key.a ^ s.key.b) & mask
	for m.slots[i].used {
		i = (i + 1) & mask
	}
	m.slots[i] = s
}

func (m *memo) rehash(n int) {
	old := m.slots
	m.slots = make([]memoSlot, n)
	for _, s := range old {
		if s.used {
			m.insert(s)
		}
	}
}
