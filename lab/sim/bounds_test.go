// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// eightGPUs are nodes of eight GPUs that are all alike.
func eightGPUs(nodes int) []Node {
	var list []Node
	for i := range nodes {
		list = append(list, Node{Name: fmt.Sprintf("n%d", i), CPUMilli: 64000, MemoryMiB: 65536, GPUs: 8, Model: "T4"})
	}
	return list
}

func oneGPU(name string, arrive, run float64, priority int, queue string) Task {
	return Task{Name: name, GPUs: 1, GPUMilli: 1000, ArriveSecond: arrive, RunSeconds: run, Priority: priority, Queue: queue, MinRunSeconds: 60}
}

// bounds replays tasks with limits.
func bounds(t *testing.T, nodes []Node, tasks []Task, limits Limits, quotas []place.Queue) LiveResult {
	t.Helper()
	r, err := Live(nodes, tasks, planned(t, &Workload{Nodes: nodes}, place.PolicyBalanced, quickWeights()), LiveOptions{Queue: true, Limits: &limits, Quotas: quotas})
	if err != nil {
		t.Fatal(err)
	}
	if r.Bounds.Unserved != 0 {
		t.Errorf("%d tasks still wait when nothing runs any more", r.Bounds.Unserved)
	}
	return r
}

// of is how long the tasks of a size and priority waited.
func (b *Bounds) of(size Class, priority int) Behind {
	for _, s := range b.Sizes {
		if s.Size == size && s.Priority == priority {
			return s
		}
	}
	return Behind{}
}

func TestDefaultLimitsAreTheServices(t *testing.T) {
	c, l := config.Default().Preemption, DefaultLimits()
	if l.MaxPerJob != c.MaxPerJob || l.MaxPerQueue != c.MaxPerQueue || l.MaxPerMinute != c.MaxPerMinute {
		t.Errorf("limits %+v, the service has %+v", l, c)
	}
}

// A task for all GPUs of a node beside a stream of tasks for one GPU, of the same priority, that want
// more than there is: it waits for a minute, and then for those that run on the node that is
// kept for it. Where no node is kept, it waits until the stream ends.
func TestALargeTaskStartsBesideAStreamOfSmallOnes(t *testing.T) {
	const stream, longest = 4 * 3600, 900
	nodes := eightGPUs(4)
	rng := rand.New(rand.NewPCG(1, 1))
	var tasks []Task
	for at := 0.0; at < stream; at += rng.ExpFloat64() * 16 {
		tasks = append(tasks, oneGPU(fmt.Sprint(len(tasks)), at, 300+rng.Float64()*(longest-300), 50, ""))
	}
	for i := range 2 {
		large := oneGPU("large", 1800+7200*float64(i), 600, 50, "")
		large.GPUs = 8
		at, _ := slices.BinarySearchFunc(tasks, large, func(a, b Task) int { return int(a.ArriveSecond - b.ArriveSecond) })
		tasks = slices.Insert(tasks, at, large)
	}
	large := bounds(t, nodes, tasks, DefaultLimits(), nil).Bounds.of(ClassLarge, 50)
	if most := float64(60 + longest + tickSeconds); large.LongestFirst > most {
		t.Errorf("the large task is the first that waits for %.0f s, want %.0f at most", large.LongestFirst, most)
	}
	none := DefaultLimits()
	none.Kept = 0
	if wait := bounds(t, nodes, tasks, none, nil).Bounds.of(ClassLarge, 50).LongestFirst; wait < stream/2 {
		t.Errorf("where no node is kept, the large task is the first for %.0f s only: the stream is no test", wait)
	}
}

// A queue that asks for its guarantee, all of which is lent, has it within min_run_time, and
// as fast as the rate of evictions allows.
func TestWhatWasLentComesBack(t *testing.T) {
	var tasks []Task
	for i := range 64 {
		tasks = append(tasks, oneGPU(fmt.Sprint("lent", i), 0, 50_000, 70, Greedy))
	}
	for i := range 32 {
		tasks = append(tasks, oneGPU(fmt.Sprint("own", i), 30, 3600, 30, Bursty))
	}
	nodes := eightGPUs(8)
	r := bounds(t, nodes, tasks, DefaultLimits(), EvenQueues(nodes, tasks))
	if r.Evictions != 32 || r.Bounds.MostEvictions != 1 {
		t.Errorf("%d evictions, of one task %d", r.Evictions, r.Bounds.MostEvictions)
	}
	for _, o := range r.Bounds.Owed {
		if most := float64(60 + 2*tickSeconds); o.Queue == Bursty && (o.Wait.Tasks != 32 || o.Wait.Longest > most) {
			t.Errorf("queue %s waits for what is its own with %d tasks, %.0f s at the longest, want 32 and %.0f at most", o.Queue, o.Wait.Tasks, o.Wait.Longest, most)
		}
	}
}

// A queue holds its own GPU, and all CPU of the node with the other one: a task of the other queue
// waits, but is not late, since nothing is lent. It is where the queue has borrowed the second GPU, also
// while that is spared.
func TestWhatNobodyLentIsNotLate(t *testing.T) {
	for lent, late := range map[bool]float64{false: 0, true: 900} {
		nodes := []Node{{Name: "n1", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 1, Model: "T4"}, {Name: "n2", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 1, Model: "T4"}}
		tasks := []Task{oneGPU("a", 0, 1000, 50, Greedy), oneGPU("b", 0, 1000, 50, Greedy), oneGPU("own", 100, 600, 50, Bursty)}
		tasks[0].CPUMilli, tasks[2].CPUMilli, tasks[0].MinRunSeconds, tasks[1].MinRunSeconds = 1, 1, 7200, 7200
		if !lent {
			tasks[1].GPUs, tasks[1].GPUMilli, tasks[1].CPUMilli = 0, 0, 8000
		}
		r := bounds(t, nodes, tasks, DefaultLimits(), EvenQueues(nodes, tasks))
		for _, o := range r.Bounds.Owed {
			if o.Queue == Bursty && (o.Wait.Longest != 900 || o.Late.Longest != late) {
				t.Errorf("lent %v: waits for %.0f s, and is late by %.0f s, want 900 and %.0f", lent, o.Wait.Longest, o.Late.Longest, late)
			}
		}
	}
}

// The free GPU of one node is kept for a task for both, which waits for firm work to end. One GPU of
// the guarantee is then taken back on the other node.
func TestWhatWasLentComesBackBesideRoomThatIsKept(t *testing.T) {
	nodes := []Node{{Name: "n1", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 2, Model: "T4"}, {Name: "n2", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 2, Model: "V100"}}
	tasks := []Task{
		oneGPU("firm1", 0, 20_000, 70, Greedy), oneGPU("firm2", 0, 20_000, 70, Greedy), oneGPU("lent", 0, 20_000, 50, Greedy),
		oneGPU("both", 10, 600, 50, Bursty), oneGPU("own", 20, 600, 30, Bursty),
	}
	tasks[0].Models, tasks[1].Models, tasks[2].Models, tasks[3].GPUs = []string{"T4"}, []string{"V100"}, []string{"V100"}, 2
	r := bounds(t, nodes, tasks, DefaultLimits(), EvenQueues(nodes, tasks))
	if wait := r.Bounds.of(ClassOne, 30).Wait.Longest; r.Evictions != 1 || wait > 60+2*tickSeconds {
		t.Errorf("%d evictions, and it waits for %.0f s", r.Evictions, wait)
	}
}

// On the only node a task for all GPUs waits for firm work to end, and one GPU is kept for it. A task of
// the same queue takes the place of what was lent, and not the GPU that is kept.
func TestWhatWasLentComesBackWhereRoomIsKept(t *testing.T) {
	nodes := []Node{{Name: "n", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 3, Model: "T4"}}
	tasks := []Task{
		oneGPU("firm", 0, 20_000, 70, Greedy), oneGPU("lent", 0, 20_000, 50, Greedy),
		oneGPU("all", 10, 600, 60, Bursty), oneGPU("own", 20, 600, 30, Bursty),
	}
	tasks[2].GPUs = 3
	queues := []place.Queue{{Name: Greedy, GuaranteeMilli: 1000}, {Name: Bursty, GuaranteeMilli: 3000}}
	r := bounds(t, nodes, tasks, DefaultLimits(), queues)
	if wait := r.Bounds.of(ClassOne, 30).Wait.Longest; r.Evictions != 1 || wait > 60+2*tickSeconds {
		t.Errorf("%d evictions, and it waits for %.0f s", r.Evictions, wait)
	}
	if lent := r.Bounds.of(ClassOne, 50).Wait.Longest; lent < 600 {
		t.Errorf("what was lent starts again after %.0f s, in room that is kept", lent)
	}
}

// No room is kept for a task that would have to give it back at once: of a queue that could only borrow it.
func TestNoRoomIsKeptForWhatWouldHaveToGiveItBack(t *testing.T) {
	nodes := []Node{{Name: "n", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 3, Model: "T4"}}
	tasks := []Task{oneGPU("firm", 0, 20_000, 70, Greedy), oneGPU("all", 10, 600, 60, Greedy), oneGPU("own", 200, 600, 30, Bursty)}
	tasks[1].GPUs = 3
	queues := []place.Queue{{Name: Greedy, GuaranteeMilli: 1000}, {Name: Bursty, GuaranteeMilli: 2000}}
	r := bounds(t, nodes, tasks, DefaultLimits(), queues)
	if wait := r.Bounds.of(ClassOne, 30).Wait.Longest; r.Evictions != 0 || wait > 0 {
		t.Errorf("%d evictions, and it waits for %.0f s", r.Evictions, wait)
	}
}

// One GPU, and every five minutes a short task that is more important, of the same queue or of
// another one: the other one is evicted four times within an hour and no more, and ends.
func TestATaskIsEvictedSoOften(t *testing.T) {
	for _, row := range []struct {
		most, want int
		urgent     string
	}{{4, 4, "a"}, {4, 4, "b"}, {100, 12, "a"}, {100, 12, "b"}} {
		tasks := []Task{oneGPU("lowly", 0, 3000, 30, "a")}
		for i := range 24 {
			tasks = append(tasks, oneGPU("urgent", 150+300*float64(i), 60, 70, row.urgent))
		}
		limits := DefaultLimits()
		limits.MaxPerJob = row.most
		nodes := []Node{{Name: "n", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 1, Model: "T4"}}
		if r := bounds(t, nodes, tasks, limits, []place.Queue{{Name: "a"}, {Name: "b"}}); r.Bounds.MostInAnHour != row.want || r.Finished != len(tasks) {
			t.Errorf("at most %d evictions, for queue %s: %d within an hour, want %d; %d of %d tasks have ended", row.most, row.urgent, r.Bounds.MostInAnHour, row.want, r.Finished, len(tasks))
		}
	}
}

// An urgent task evicts one that evicts another one, which has room left by neither: the chain is
// two evictions long, and the room was handed over once.
func TestChainsAreMeasured(t *testing.T) {
	nodes := []Node{{Name: "n1", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 1, Model: "T4"}, {Name: "n2", CPUMilli: 8000, MemoryMiB: 8192, GPUs: 1, Model: "V100"}}
	tasks := []Task{oneGPU("low", 0, 1000, 30, ""), oneGPU("mid", 100, 1000, 50, ""), oneGPU("high", 200, 1000, 70, "")}
	tasks[0].Models, tasks[2].Models = []string{"T4"}, []string{"V100"}
	b := bounds(t, nodes, tasks, DefaultLimits(), nil).Bounds
	if b.LongestChain != 2 || b.LongestHandover != 1 || b.MostEvictions != 1 {
		t.Errorf("bounds %+v", b)
	}
}

// What docs/design/service.md says of generated replays in which two queues want more than there is.
func TestNobodyWaitsForEver(t *testing.T) {
	limits := DefaultLimits()
	for seed := range uint64(3) {
		s := DefaultSynthetic()
		s.Seed, s.Nodes, s.Percent, s.Live, s.MeanLoad, s.Models = seed+1, 30, 600, true, 105, 0
		w := Generate(s)
		Burst(w.Arrivals, s.Seed)
		b := bounds(t, w.Nodes, w.Arrivals, limits, EvenQueues(w.Nodes, w.Arrivals)).Bounds
		if b.MostInAnHour > 2*limits.MaxPerJob {
			t.Errorf("seed %d: a task was evicted %d times within an hour", s.Seed, b.MostInAnHour)
		}
		if wait := max(b.of(ClassOne, 50).Wait.Longest, b.of(ClassOne, 70).Wait.Longest); wait > 3600 {
			t.Errorf("seed %d: a task of one GPU waited for %.0f s", s.Seed, wait)
		}
		for _, o := range b.Owed {
			if o.Size == ClassOne && o.Wait.P99 > 900 {
				t.Errorf("seed %d: queue %s waited for %.0f s for one GPU of its own", s.Seed, o.Queue, o.Wait.P99)
			}
		}
	}
}
