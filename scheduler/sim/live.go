package sim

import (
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// LiveResult is what a replay with departures measured.
type LiveResult struct {
	Started    int
	Finished   int
	Never      int // tasks that no empty node could hold
	Evictions  int
	LostMilliS int64 // work thrown away by evictions, GPU milli-seconds
	DoneMilliS int64 // work finished, GPU milli-seconds
	// UsedPercent is the mean allocation over time while work was waiting or
	// running.
	UsedPercent float64
	Waits       map[int]Wait    // by priority
	Queues      map[string]Wait // by queue
	// Fairness is Jain's index over the queues' work done per guarantee: 1 when
	// all got the same part of their guarantee.
	Fairness float64
	Timeline []Moment `json:"-"`
}

// Moment is the state of a live replay at a time.
type Moment struct {
	Second    int64
	UsedMilli int64
	ByQueue   map[string]int64 // GPU milli held
	Waiting   int              // tasks
}

// Wait sums up waiting times, from arrival to the first start.
type Wait struct {
	Tasks      int
	Mean, P95  time.Duration
	Longest    time.Duration
	DoneMilliS int64
	waits      []time.Duration
}

// Live replays arrivals and departures: tasks wait in the planner's order,
// start when there is room, are evicted for higher priorities and for quotas
// that are wanted back, then wait again and lose their work.
func Live(nodes []Node, history, tasks []Task, queues []place.Queue, policy place.Policy, w place.Weights) (LiveResult, error) {
	p, err := NewPlanned(nodes, history, policy, w)
	if err != nil {
		return LiveResult{}, err
	}
	if len(queues) > 0 {
		q, err := place.NewQuotas(queues)
		if err != nil {
			return LiveResult{}, err
		}
		p.Planner.SetQuotas(q)
	}
	l := &live{Planned: p, tasks: tasks, starts: map[string]*running{}, seen: map[int]bool{}, held: map[string]int64{}}
	l.result = LiveResult{Waits: map[int]Wait{}, Queues: map[string]Wait{}}
	l.capacity = Capacity(nodes)
	if err := l.run(); err != nil {
		return LiveResult{}, err
	}
	l.summarise(queues)
	return l.result, nil
}

type live struct {
	*Planned
	tasks    []Task
	pending  []place.Request
	starts   map[string]*running
	ends     endHeap
	seen     map[int]bool // tasks that have started once
	now      int64
	used     int64            // milli in use
	held     map[string]int64 // by queue
	area     float64
	busy     int64 // seconds with work about
	capacity int64
	result   LiveResult
}

// running is a task that runs; gone marks an end that no longer happens.
type running struct {
	task  int
	start int64
	end   int64
	gone  bool
}

// run goes from event to event: the next arrival or the next end.
func (l *live) run() error {
	next := 0
	for next < len(l.tasks) || l.ends.Len() > 0 {
		at := int64(1) << 62
		if next < len(l.tasks) {
			at = l.tasks[next].ArriveSecond
		}
		if l.ends.Len() > 0 {
			at = min(at, l.ends[0].end)
		}
		l.advance(at)
		if err := l.finish(); err != nil {
			return err
		}
		for next < len(l.tasks) && l.tasks[next].ArriveSecond <= l.now {
			l.arrive(next)
			next++
		}
		if err := l.schedule(); err != nil {
			return err
		}
		l.note()
	}
	return nil
}

// momentEvery is the least time between two moments of the timeline.
const momentEvery = 300

// note adds to the timeline.
func (l *live) note() {
	line := l.result.Timeline
	if len(line) == 0 || l.now >= line[len(line)-1].Second+momentEvery {
		l.result.Timeline = append(line, Moment{l.now, l.used, maps.Clone(l.held), len(l.pending)})
	}
}

// hold books what a task holds (sign 1), or that it holds it no more (-1).
func (l *live) hold(t *Task, sign int64) {
	l.used += sign * t.Demand()
	l.held[t.Queue] += sign * t.Demand()
}

func (l *live) advance(to int64) {
	if to <= l.now {
		return
	}
	if l.used > 0 || len(l.pending) > 0 {
		l.area += float64(l.used) * float64(to-l.now)
		l.busy += to - l.now
	}
	l.now = to
}

func (l *live) clock() time.Time { return time.Unix(l.now, 0) }

func (l *live) arrive(i int) {
	r := RequestOf(&l.tasks[i], strconv.Itoa(i))
	r.Submit = l.clock()
	r.MinRun = time.Duration(l.tasks[i].MinRunSeconds) * time.Second
	l.Planner.Arrive(&r)
	l.pending = append(l.pending, r)
}

// finish ends what has run long enough.
func (l *live) finish() error {
	for l.ends.Len() > 0 && l.ends[0].end <= l.now {
		r := heap.Pop(&l.ends).(*running)
		if r.gone {
			continue
		}
		t := &l.tasks[r.task]
		if _, err := l.Snapshot.Release(strconv.Itoa(r.task)); err != nil {
			return err
		}
		delete(l.starts, strconv.Itoa(r.task))
		l.hold(t, -1)
		work := t.Demand() * t.RunSeconds
		l.result.Finished++
		l.result.DoneMilliS += work
		q := l.result.Queues[t.Queue]
		q.DoneMilliS += work
		l.result.Queues[t.Queue] = q
	}
	return nil
}

// shapeOfWork identifies requests with the same chances, so that after one
// failed the others need not be tried in the same round.
type shapeOfWork struct {
	key      taskKey
	queue    string
	priority int
}

// schedule starts what can start, in the planner's order.
func (l *live) schedule() error {
	l.Planner.Order(l.pending)
	failed := map[shapeOfWork]bool{}
	var waiting []place.Request
	for _, r := range slices.Clone(l.pending) {
		i, err := strconv.Atoi(r.ID)
		if err != nil {
			return fmt.Errorf("schedule %q: %w", r.ID, err)
		}
		shape := shapeOfWork{keyOf(&l.tasks[i]), r.Queue, r.Priority}
		if failed[shape] {
			waiting = append(waiting, r)
			continue
		}
		plan, err := l.Planner.Preempt([]place.Request{r}, l.clock())
		if err != nil {
			failed[shape] = true
			waiting = append(waiting, r)
			continue
		}
		evicted, err := l.carryOut(i, plan)
		if err != nil {
			return err
		}
		waiting = append(waiting, evicted...)
	}
	l.pending = waiting
	return nil
}

// carryOut evicts and starts what a plan says; it returns requests for the
// evicted.
func (l *live) carryOut(i int, plan place.Plan) ([]place.Request, error) {
	var again []place.Request
	for _, v := range plan.Victims {
		if _, err := l.Snapshot.Release(v.ID); err != nil {
			return nil, err
		}
		r := l.starts[v.ID]
		r.gone = true
		delete(l.starts, v.ID)
		t := &l.tasks[r.task]
		l.hold(t, -1)
		l.result.Evictions++
		l.result.LostMilliS += t.Demand() * (l.now - r.start)
		q := RequestOf(t, v.ID)
		q.Submit = time.Unix(t.ArriveSecond, 0)
		q.MinRun = v.MinRun
		again = append(again, q)
	}
	return again, l.begin(i, plan.Placements[0].Usage)
}

func (l *live) begin(i int, u place.Usage) error {
	u.Start = l.clock()
	if err := l.Snapshot.Apply(u); err != nil {
		return err
	}
	t := &l.tasks[i]
	l.hold(t, 1)
	r := &running{task: i, start: l.now, end: l.now + max(1, t.RunSeconds)}
	l.starts[u.ID] = r
	heap.Push(&l.ends, r)
	if !l.seen[i] {
		l.seen[i] = true
		l.result.Started++
		wait := time.Duration(l.now-t.ArriveSecond) * time.Second
		addWait(l.result.Waits, t.Priority, wait)
		addWait(l.result.Queues, t.Queue, wait)
	}
	return nil
}

func addWait[K comparable](m map[K]Wait, key K, wait time.Duration) {
	w := m[key]
	w.waits = append(w.waits, wait)
	m[key] = w
}

func (l *live) summarise(queues []place.Queue) {
	l.result.Never = len(l.pending)
	if l.busy > 0 && l.capacity > 0 {
		l.result.UsedPercent = 100 * l.area / float64(l.busy) / float64(l.capacity)
	}
	for k, w := range l.result.Waits {
		l.result.Waits[k] = w.summed()
	}
	for k, w := range l.result.Queues {
		l.result.Queues[k] = w.summed()
	}
	var parts []float64
	for _, q := range queues {
		if w, ok := l.result.Queues[q.Name]; ok && q.GuaranteeMilli > 0 {
			parts = append(parts, float64(w.DoneMilliS)/float64(q.GuaranteeMilli))
		}
	}
	l.result.Fairness = jain(parts)
}

func (w Wait) summed() Wait {
	w.Tasks = len(w.waits)
	if w.Tasks == 0 {
		return w
	}
	slices.Sort(w.waits)
	var sum time.Duration
	for _, d := range w.waits {
		sum += d
	}
	w.Mean, w.P95, w.Longest = sum/time.Duration(w.Tasks), w.waits[w.Tasks*95/100], w.waits[w.Tasks-1]
	return w
}

// jain is Jain's fairness index: (Σx)² / (n·Σx²).
func jain(xs []float64) float64 {
	var sum, squares float64
	for _, x := range xs {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(xs)) * squares)
}

// endHeap orders running tasks by end, then by task.
type endHeap []*running

func (h endHeap) Len() int { return len(h) }
func (h endHeap) Less(i, j int) bool {
	return h[i].end < h[j].end || (h[i].end == h[j].end && h[i].task < h[j].task)
}
func (h endHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *endHeap) Push(x any)   { *h = append(*h, x.(*running)) }
func (h *endHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
