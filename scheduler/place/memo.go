package place

// memo remembers expected waste by state: an open-addressing hash table that
// is emptied when it has grown too large, so that its memory is bounded.
type memo struct {
	slots []memoSlot
	count int
}

// memoSlot is a key and a value, free while the key is zero. That a state has
// that key is less likely than a memory error, and so is that two share one.
type memoSlot struct {
	a     uint64
	b     uint32
	value int32
}

func (s *memoSlot) free() bool { return s.a == 0 && s.b == 0 }

// maxMemo bounds the number of remembered states (32 bytes each).
const maxMemo = 1 << 20

// stateKey identifies the state of a bank: kind, free CPU in steps, and the
// usable shares of its GPUs. It is a sum of hashes, so that the key of a state
// in which one GPU differs is found without a look at the others.
type stateKey struct {
	a uint64
	b uint32
}

// keyOfShare is the part of a GPU; of one without anything free it is nothing.
func keyOfShare(share int32) stateKey {
	if share == 0 {
		return stateKey{}
	}
	return hashed(uint64(share))
}

// keyOfHost is the part of the kind and of the free CPU.
func keyOfHost(kind int32, cpuSteps int64) stateKey {
	return hashed(uint64(kind+1)<<40 ^ uint64(cpuSteps))
}

func hashed(v uint64) stateKey {
	r := splitmix{v}
	return stateKey{r.next(), uint32(r.next())}
}

func (k stateKey) plus(o stateKey) stateKey { return stateKey{k.a + o.a, k.b + o.b} }

func (k stateKey) minus(o stateKey) stateKey { return stateKey{k.a - o.a, k.b - o.b} }

// swap is the key with one GPU's share another.
func (k stateKey) swap(from, to int32) stateKey {
	return k.minus(keyOfShare(from)).plus(keyOfShare(to))
}

func (m *memo) reset() { m.slots, m.count = nil, 0 }

func (m *memo) get(k stateKey) (int32, bool) {
	if len(m.slots) == 0 {
		return 0, false
	}
	mask := uint64(len(m.slots) - 1)
	for i := k.a & mask; !m.slots[i].free(); i = (i + 1) & mask {
		if s := &m.slots[i]; s.a == k.a && s.b == k.b {
			return s.value, true
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
	m.insert(memoSlot{k.a, k.b, v})
	m.count++
}

func (m *memo) insert(s memoSlot) {
	mask := uint64(len(m.slots) - 1)
	i := s.a & mask
	for !m.slots[i].free() {
		i = (i + 1) & mask
	}
	m.slots[i] = s
}

func (m *memo) rehash(n int) {
	old := m.slots
	m.slots = make([]memoSlot, n)
	for _, s := range old {
		if !s.free() {
			m.insert(s)
		}
	}
}
