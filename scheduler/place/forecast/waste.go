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
	drawn[futureTask]
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
		f.pair = newPair(pairs, newDrawn(own, pairs, ws.Streams))
		return f
	}
	f.drawn = newDrawn(own, tasks, ws.Streams)
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
const streamTasks = 608

// stratum is how many consecutive tasks of all streams are drawn together.
const stratum = 32

// drawn is random sequences of tasks by weight, as far as they were needed. In every stretch of
// stratum tasks all streams together hold each task in proportion to its
// weight: few streams then stand for the demand as well as many independent
// ones would.
type drawn[T any] struct {
	streams [][]T
	tasks   []T
	by      *sampler
	rng     splitmix.Source
}

func newDrawn[T any](weights []float64, tasks []T, count int) drawn[T] {
	d := drawn[T]{tasks: tasks, by: newSampler(weights), rng: 1}
	if d.by.total() > 0 {
		d.streams = make([][]T, count)
	}
	return d
}

// more draws another stratum; false when the streams are complete.
func (d *drawn[T]) more() bool {
	count := len(d.streams)
	if len(d.streams[0]) >= streamTasks {
		return false
	}
	for i, layer := range d.rng.Shuffled(count * stratum) {
		u := (float64(layer) + d.rng.Float()) / float64(count*stratum)
		d.streams[i%count] = append(d.streams[i%count], d.tasks[d.by.at(u)])
	}
	return true
}

// play sums up what stays idle in all streams. fill returns it for one, with what is left of that
// stream; where less than reach is left, the end of what was drawn may have been the end.
func (d *drawn[T]) play(reach int, fill func(stream []T) (lost int64, left int)) (sum int64) {
	for i := range d.streams {
		lost, left := fill(d.streams[i])
		for left < reach && d.more() {
			lost, left = fill(d.streams[i])
		}
		sum += lost
	}
	return sum
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
	buf := ws.shares[:len(shares)]
	sum := f.drawn.play(2*ws.Misses, func(stream []futureTask) (int64, int) {
		copy(buf, shares)
		return f.fill(stream, cpu, buf, ws.Misses)
	})
	return int32(sum / int64(len(f.streams)))
}

// fill places a stream on a pool, two candidates at a time, and returns the
// milli that stay idle and how much of the stream is left. Of two that fit, the one that leaves less on its GPU
// is taken: a scheduler has a choice of tasks for a node, though not a wide
// one. A CPU-only task that comes first is taken always. It is over after so
// many misses in a row. shares is sorted and trimmed.
func (f *future) fill(stream []futureTask, cpu int32, shares []int32, misses int) (lost int64, left int) {
	for cpu >= f.minCPU && len(shares) > 0 {
		free := newFutureTask(cpu, shares[len(shares)-1]) | enough
		i, end := 1, min(len(stream), 2*misses)
		for ; i < end; i += 2 {
			if stream[i-1].within(free) || stream[i].within(free) {
				break
			}
		}
		if i >= end {
			break
		}
		t, b := stream[i-1], stream[i]
		stream = stream[i+1:]
		at := 0
		if !t.within(free) {
			t, at = b, tightest(b.share(), shares)
		} else if at = tightest(t.share(), shares); t.share() > 0 && b.share() > 0 && b.within(free) {
			if other := tightest(b.share(), shares); shares[other]-b.share() < shares[at]-t.share() {
				t, at = b, other
			}
		}
		cpu -= t.cpu()
		if t.share() > 0 {
			occupy(t.share(), at, shares)
			shares, lost = f.trim(shares, lost)
		}
	}
	for _, s := range shares {
		lost += int64(s)
	}
	return lost, len(stream)
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
