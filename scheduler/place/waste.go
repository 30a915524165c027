package place

// waste estimates how many GPU milli of a bank stay idle for good once the
// node has filled up, by playing random futures forward from a state.
//
// The futures are drawn once per kind of GPU and used for every state of that
// kind (common random numbers), so that differences between two states are not
// noise. Estimates are remembered by state.
type waste struct {
	w       *Weights
	futures map[int32][][]futureTask // per kind
	known   map[stateKey]int32
	shares  [maxGPUs]int32
}

// futureTask is a task of a random future, on one kind of GPU.
type futureTask struct {
	cpu   int32 // MHz
	share int32 // usable milli per GPU
	gpus  int32
}

// stateKey identifies the state of a bank: kind, free CPU in steps, and the
// usable shares of its GPUs in ascending order.
type stateKey struct{ a, b uint64 }

func newWaste(w *Weights) *waste {
	return &waste{w: w, futures: map[int32][][]futureTask{}, known: map[stateKey]int32{}}
}

// learn replaces the futures by draws from the demand.
func (ws *waste) learn(s *Snapshot, d *demand) {
	weights := d.weights(float64(ws.w.PriorTasks))
	clear(ws.known)
	for id := range s.kinds {
		ws.futures[int32(id)] = ws.draw(s, d, weights, int32(id))
	}
}

func (ws *waste) draw(s *Snapshot, d *demand, weights []float64, id int32) [][]futureTask {
	own := make([]float64, len(weights))
	tasks := make([]futureTask, len(weights))
	biggest := s.biggest(id)
	for i, e := range d.entries {
		t, ok := futureOf(s, e.shape, id, biggest)
		if tasks[i] = t; ok {
			own[i] = weights[i]
		}
	}
	sm := newSampler(own, 1)
	if sm.total() == 0 {
		return nil
	}
	streams := make([][]futureTask, ws.w.Streams)
	for i := range streams {
		streams[i] = make([]futureTask, ws.w.StreamTasks)
		for j := range streams[i] {
			streams[i][j] = tasks[sm.draw()]
		}
	}
	return streams
}

// size is the largest empty node of a kind.
type size struct {
	cpu, memory int64
	gpus        int
}

func (s *Snapshot) biggest(id int32) size {
	var m size
	for _, b := range s.banks {
		if b != nil && b.kind == id {
			m.cpu = max(m.cpu, b.node.spec.CPUMHz)
			m.memory = max(m.memory, b.node.spec.MemoryMiB)
			m.gpus = max(m.gpus, len(b.cells))
		}
	}
	return m
}

func futureOf(s *Snapshot, sh *shape, id int32, biggest size) (futureTask, bool) {
	r := &sh.req
	if r.CPUMHz > biggest.cpu || r.MemoryMiB > biggest.memory || r.GPUs > biggest.gpus {
		return futureTask{}, false
	}
	t := futureTask{cpu: int32(r.CPUMHz)}
	if r.GPUs == 0 {
		return t, true
	}
	nd := sh.need(s, id)
	t.share, t.gpus = nd.share, int32(r.GPUs)
	return t, nd.ok
}

// idle returns the expected terminal waste of a state in milli. shares is
// sorted ascending.
func (ws *waste) idle(kind int32, cpu int64, shares []int32) int32 {

	key := ws.key(kind, cpu, shares)
	if v, ok := ws.known[key]; ok {
		return v
	}

	step := ws.w.CPUStepMHz
	v := ws.play(ws.futures[kind], int32(cpu/step*step), shares)
	ws.known[key] = v
	return v
}

func (ws *waste) key(kind int32, cpu int64, shares []int32) stateKey {
	h := stateKey{uint64(kind)<<32 | uint64(cpu/ws.w.CPUStepMHz), 0x9e3779b97f4a7c15}
	for _, v := range shares {
		h.a = (h.a ^ uint64(v)) * 0xff51afd7ed558ccd
		h.a ^= h.a >> 32
		h.b = (h.b + uint64(v) + 1) * 0xc4ceb9fe1a85ec53
		h.b ^= h.b >> 29
	}
	return h
}

func (ws *waste) play(streams [][]futureTask, cpu int32, shares []int32) int32 {
	if len(streams) == 0 {
		return 0
	}
	var sum int64
	buf := ws.shares[:len(shares)]
	for _, stream := range streams {
		copy(buf, shares)
		sum += fill(stream, cpu, buf, ws.w.Misses)
	}
	return int32(sum / int64(len(streams)))
}

// fill places a future on a bank, two candidates at a time, and returns the
// milli that stay idle.
func fill(stream []futureTask, cpu int32, shares []int32, misses int) int64 {
	missed := 0
	for i := 0; i+1 < len(stream) && missed < misses; i += 2 {
		a, b := &stream[i], &stream[i+1]
		leftA, atA := leftover(a, cpu, shares)
		if a.gpus == 0 && leftA >= 0 {
			cpu -= a.cpu
			missed = 0
			continue
		}
		leftB, atB := leftover(b, cpu, shares)
		if leftA < 0 && leftB < 0 {
			missed++
			continue
		}
		missed = 0
		if leftA < 0 || (leftB >= 0 && leftB < leftA) {
			a, atA = b, atB
		}
		cpu -= a.cpu
		take(a, atA, shares)
	}
	var idle int64
	for _, s := range shares {
		idle += int64(s)
	}
	return idle
}

// leftover is what the best GPU would have left after the task; -1 when it
// does not fit. at is that GPU.
func leftover(t *futureTask, cpu int32, shares []int32) (left int32, at int) {
	if t.cpu > cpu {
		return -1, 0
	}
	if t.gpus == 0 {
		return 0, 0
	}
	if t.gpus == 1 {
		left = -1
		for i, s := range shares {
			if l := s - t.share; l >= 0 && (left < 0 || l < left) {
				left, at = l, i
			}
		}
		return left, at
	}
	n := t.gpus
	for _, s := range shares {
		if s >= t.share {
			n--
		}
	}
	if n > 0 {
		return -1, 0
	}
	return 0, 0
}

func take(t *futureTask, at int, shares []int32) {
	switch t.gpus {
	case 0:
	case 1:
		shares[at] -= t.share
	default:
		n := t.gpus
		for i, s := range shares {
			if n > 0 && s >= t.share {
				shares[i] -= t.share
				n--
			}
		}
	}
}
