// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"math"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/splitmix"
)

// Waste estimates how many GPU milli of a pool stay idle for good once the
// node has filled up, by playing random futures forward from a state.
//
// The futures are drawn once per kind of GPU and used for every state of that
// kind (common random numbers), so that differences between two states are not
// noise. Estimates are remembered by state.
type Waste struct {
	Precision
	futures []future // per kind
	both    both     // how much compute and memory count, where they are told apart
	known   memo
	shares  [MaxGPUs]int32
}

// future is a sequence of tasks that may come to pools of one kind of GPU.
type future struct {
	streams  [][]futureTask
	cpuStep  int64 // MHz; free CPU is rounded to this
	minCPU   int32 // the least that a GPU task needs
	minShare int32
	pair     pair // in its stead where compute and memory are told apart
}

// futureTask is a task on one GPU, or with share 0 a CPU-only one. Tasks of
// several GPUs are played as that many tasks of one: rare large tasks would make
// the estimate depend on whether a stream happens to have one. Room for them
// is what the slot price protects.
//
// The share, in usable milli, is in the upper half and the CPU, in MHz, in the
// lower, so that one subtraction compares both with the free capacity.
type futureTask uint64

func newFutureTask(cpu, share int32) futureTask { return futureTask(share)<<32 | futureTask(cpu) }

func (t futureTask) cpu() int32 { return int32(t) }

func (t futureTask) share() int32 { return int32(t >> 32) }

// enough is a bit above each half of the free capacity. Where a task takes more, the
// subtraction borrows it.
const enough futureTask = 1<<63 | 1<<31

// within reports that a task fits the free capacity, which has the bits of enough.
func (t futureTask) within(free futureTask) bool { return (free-t)&enough == enough }

// NewWaste estimates with a precision, once it has learned.
func NewWaste(p Precision) *Waste { return &Waste{Precision: p} }

// Learn replaces the futures by draws from the demand.
func (ws *Waste) Learn(s *Supply, d *Demand) {
	weights := d.Weights()
	ws.known.reset()
	ws.both = d.dimensions(s)
	ws.futures = ws.futures[:0]
	for id := range s.Kinds {
		ws.futures = append(ws.futures, ws.draw(s, d, weights, int32(id)))
	}
}

func (ws *Waste) draw(s *Supply, d *Demand, weights []float64, id int32) future {
	largest := s.Kinds[id].Largest
	f := future{cpuStep: max(1, largest.CPU/max(1, ws.CPUSteps)), minCPU: math.MaxInt32, minShare: gpuMilli}
	var own []float64
	var tasks []futureTask
	var pairs []pairTask
	for i, e := range d.entries {
		t, ok := futureOf(e.shape, id, largest)
		if !ok || weights[i] == 0 {
			continue
		}
		tasks = append(tasks, t)
		if ws.Paired() {
			pairs = append(pairs, ws.both.pairOf(e.shape, id, t))
		}
		own = append(own, weights[i]*float64(max(1, e.shape.GPUs)))
		if t.share() > 0 {
			f.minCPU, f.minShare = min(f.minCPU, t.cpu()), min(f.minShare, t.share())
		}
	}
	if ws.Paired() {
		f.pair = newPair(pairs, streams(own, pairs, ws.Streams, streamTasks))
		return f
	}
	f.streams = streams(own, tasks, ws.Streams, streamTasks)
	return f
}

// futureOf translates a shape to one GPU of a kind; false when an empty node
// of that kind could not run it.
func futureOf(sh *Shape, id int32, largest Size) (futureTask, bool) {
	if sh.CPU > largest.CPU || sh.Memory > largest.Memory || sh.GPUs > largest.GPUs {
		return 0, false
	}
	if sh.GPUs == 0 {
		return newFutureTask(int32(sh.CPU), 0), true
	}
	share, ok := sh.Takes(id)
	return newFutureTask(int32(sh.CPU/int64(sh.GPUs)), share), ok
}

// streamTasks is the length of a stream. A node is full long before its end.
const streamTasks = 600

// stratum is how many consecutive tasks of all streams are drawn together.
const stratum = 32

// streams draws random sequences of tasks by weight. In every stretch of
// stratum tasks all streams together hold each task in proportion to its
// weight: few streams then stand for the demand as well as many independent
// ones would.
func streams[T any](weights []float64, tasks []T, count, length int) [][]T {
	sm := newSampler(weights)
	if sm.total() == 0 {
		return nil
	}
	rng := splitmix.Source(1)
	out := make([][]T, count)
	for range (length + stratum - 1) / stratum {
		for i, layer := range rng.Shuffled(count * stratum) {
			u := (float64(layer) + rng.Float()) / float64(count*stratum)
			out[i%count] = append(out[i%count], tasks[sm.at(u)])
		}
	}
	return out
}

// Key is the part of a kind and of free CPU.
func (ws *Waste) Key(kind int32, cpu int64) StateKey {
	return keyOfHost(kind, cpu/ws.futures[kind].cpuStep)
}

// Known is the expected waste of a state that was estimated before.
func (ws *Waste) Known(key StateKey) (idle int32, ok bool) { return ws.known.get(key) }

// Estimate returns the expected terminal waste of a state in milli and
// remembers it. shares is sorted ascending. A remainder too small for any task is
// lost for certain, so that states which differ in nothing else are played once.
func (ws *Waste) Estimate(key StateKey, kind int32, cpu int64, shares []int32) int32 {
	f := &ws.futures[kind]
	if len(f.streams) == 0 {
		return 0
	}
	shares, lost := f.trim(shares, 0)
	rest := ws.Key(kind, cpu)
	for _, s := range shares {
		rest = rest.Plus(KeyOfShare(s))
	}
	idle, ok := ws.known.get(rest)
	if !ok {
		idle = ws.play(f, int32(cpu/f.cpuStep*f.cpuStep), shares)
		ws.known.put(rest, idle)
	}
	if rest != key {
		idle += int32(lost)
		ws.known.put(key, idle)
	}
	return idle
}

// play is the mean over the streams of what stays idle of shares that are
// trimmed.
func (ws *Waste) play(f *future, cpu int32, shares []int32) int32 {
	var sum int64
	buf := ws.shares[:len(shares)]
	for _, stream := range f.streams {
		copy(buf, shares)
		sum += f.fill(stream, cpu, buf, ws.Misses)
	}
	return int32(sum / int64(len(f.streams)))
}

// fill places a stream on a pool, two candidates at a time, and returns the
// milli that stay idle. Of two that fit, the one that leaves less on its GPU
// is taken: a scheduler has a choice of tasks for a node, though not a wide
// one. A CPU-only task that comes first is taken always. It is over after so
// many misses in a row. shares is sorted and trimmed.
func (f *future) fill(stream []futureTask, cpu int32, shares []int32, misses int) (lost int64) {
	for cpu >= f.minCPU && len(shares) > 0 {
		free := newFutureTask(cpu, shares[len(shares)-1]) | enough
		at := nextWithin(free, stream, misses)
		if at < 0 {
			break
		}
		t, b := stream[at], stream[at+1]
		stream = stream[at+2:]
		if !t.within(free) || b.within(free) && b.tighter(t, shares) {
			t = b
		}
		cpu -= t.cpu()
		if t.share() > 0 {
			occupy(t.share(), tightest(t.share(), shares), shares)
			shares, lost = f.trim(shares, lost)
		}
	}
	for _, s := range shares {
		lost += int64(s)
	}
	return lost
}

// nextWithin is the position of the first pair with a task that fits, or -1 after
// that number of misses.
func nextWithin(free futureTask, stream []futureTask, misses int) int {
	stream = stream[:min(len(stream), 2*misses)]
	for i := 1; i < len(stream); i += 2 {
		if stream[i-1].within(free) || stream[i].within(free) {
			return i - 1
		}
	}
	return -1
}

// trim drops GPUs that have too little free for any task and counts it as
// lost.
func (f *future) trim(shares []int32, lost int64) ([]int32, int64) {
	for len(shares) > 0 && shares[0] < f.minShare {
		lost += int64(shares[0])
		shares = shares[1:]
	}
	return shares, lost
}

// tightest is the position of the GPU with the least room for a share; one has
// enough.
func tightest(share int32, shares []int32) int {
	at := 0
	for shares[at] < share {
		at++
	}
	return at
}

// tighter reports whether a task leaves less on its GPU than one that came
// before. A CPU-only task leaves nothing on any, which says nothing of it: it
// neither takes precedence nor gives way.
func (t futureTask) tighter(first futureTask, shares []int32) bool {
	return t.share() > 0 && first.share() > 0 && leaves(t.share(), shares) < leaves(first.share(), shares)
}

// leaves is what the tightest GPU would have left.
func leaves(share int32, shares []int32) int32 {
	return shares[tightest(share, shares)] - share
}

// occupy takes a share from one GPU and sorts again.
func occupy(share int32, at int, shares []int32) {
	v := shares[at] - share
	for ; at > 0 && shares[at-1] > v; at-- {
		shares[at] = shares[at-1]
	}
	shares[at] = v
}

// Precision is how carefully waste is estimated: the number of random futures,
// the number of pairs in a row that must not fit before one is over, and the number of
// steps to which free CPU is rounded, of the largest node of a kind.
type Precision struct {
	Streams  int
	Misses   int
	CPUSteps int64
}
