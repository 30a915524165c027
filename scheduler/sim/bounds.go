package sim

import (
	"cmp"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/turns"
)

// Limits are what the service bounds waits and evictions by, for [LiveOptions].
type Limits struct {
	Kept         int // most nodes that are kept for what waits
	MaxPerJob    int // evictions in an hour
	MaxPerQueue  int
	MaxPerMinute int // of all work
}

// DefaultLimits are those of the service.
func DefaultLimits() Limits {
	return Limits{Kept: turns.MostKept, MaxPerJob: 4, MaxPerQueue: 60, MaxPerMinute: 30}
}

// Bounds is how long anyone waited behind others in a replay, and how often work had to
// go. All of the time counts, also that after the last arrival, and waits until they end.
type Bounds struct {
	Sizes []Behind // by size, then by priority
	// Owed is how long queues waited for what fitted into their guarantee: from when a task
	// asked for it until it started. By queue, then by size.
	Owed []Owed
	// Unserved is how many tasks still waited when nothing ran any more.
	Unserved int
	// MostEvictions is how often one task was evicted at most, and MostInAnHour within an hour.
	MostEvictions, MostInAnHour int
	// LongestChain is the most evictions of which each was for a task that had just been evicted
	// itself, and LongestHandover the most by which room went from task to task.
	LongestChain, LongestHandover int
	// LostPercent is the part of all work done that evictions threw away.
	LostPercent float64
}

// Behind is how long the tasks of a size and priority waited. A task that was evicted
// counts again.
type Behind struct {
	Size     Class
	Priority int
	Wait     Wait
	// Overtaken is how many of them waited while a task started that came later in the order, and
	// LongestBehind how long one waited at most from then until it started itself.
	Overtaken     int
	LongestBehind float64
}

// Owed is how long a queue waited for what was its own, in tasks of a size.
type Owed struct {
	Queue string
	Size  Class
	Wait  Wait
}

type owed struct {
	queue string
	size  Class
}

// watch measures bounds during a replay, and counts evictions as the service does.
type watch struct {
	l         *live
	limits    Limits
	refuses   func(*Task) bool // what no node could ever hold
	since     []float64        // by task: when it began to wait this time
	overtaken []float64        // when something else went ahead of it first; -1: nothing has
	asks      []float64        // since when its queue is owed what it asks for; -1: it is not
	evicted   [][]time.Time
	chain     []int // of a task that waits: how many evictions made it wait, one for the other
	handover  []int // of a task that runs: how many evictions gave it its room, one after the other

	perJob  turns.Evictions[int]
	perTeam turns.Evictions[string]
	limiter *rate.Limiter

	waits  map[[2]int][]float64 // by size and priority
	behind map[[2]int]*Behind
	owed   map[owed]waitTimes
	result Bounds
}

func newWatch(l *live, limits Limits) *watch {
	n := len(l.tasks)
	w := &watch{
		l: l, limits: limits, refuses: l.impossible(), since: make([]float64, n), overtaken: make([]float64, n), asks: make([]float64, n),
		evicted: make([][]time.Time, n), chain: make([]int, n), handover: make([]int, n),
		perJob: turns.NewEvictions[int](), perTeam: turns.NewEvictions[string](),
		limiter: rate.NewLimiter(rate.Every(time.Minute/time.Duration(limits.MaxPerMinute)), limits.MaxPerMinute),
		waits:   map[[2]int][]float64{}, behind: map[[2]int]*Behind{}, owed: map[owed]waitTimes{},
	}
	return w
}

// waitsAgain notes that a task begins to wait.
func (w *watch) waitsAgain(i int) {
	w.since[i], w.overtaken[i], w.asks[i], w.handover[i] = w.l.now, -1, -1, 0
	w.ask(i)
}

// ask notes since when a task is owed what it asks for.
func (w *watch) ask(i int) {
	t := &w.l.tasks[i]
	r := w.l.request(i)
	switch owed := w.l.quotas != nil && w.l.quotas.Queue(t.Queue).GuaranteeMilli > 0 && t.GPUs > 0 && !w.l.planned.Planner.Borrows(&r); {
	case !owed:
		w.asks[i] = -1
	case w.asks[i] < 0:
		w.asks[i] = w.l.now
	}
}

// starts notes that a task starts, ahead of some that have an earlier turn.
func (w *watch) starts(i int, ahead []int) {
	for _, j := range ahead {
		if w.overtaken[j] < 0 {
			w.overtaken[j] = w.l.now
		}
	}
	t := &w.l.tasks[i]
	key := [2]int{int(ClassOf(t)), t.Priority}
	b := w.behind[key]
	if b == nil {
		b = &Behind{Size: ClassOf(t), Priority: t.Priority}
		w.behind[key] = b
	}
	w.waits[key] = append(w.waits[key], w.l.now-w.since[i])
	if w.overtaken[i] >= 0 {
		b.Overtaken++
		b.LongestBehind = max(b.LongestBehind, w.l.now-w.overtaken[i])
	}
	if w.asks[i] >= 0 {
		of := owed{t.Queue, ClassOf(t)}
		w.owed[of] = append(w.owed[of], w.l.now-w.asks[i])
	}
	w.chain[i] = 0
}

// evicts notes that tasks have to go for another one.
func (w *watch) evicts(victims []int, by int) {
	now, r := w.l.clock(), &w.result
	for _, j := range victims {
		own := w.l.tasks[j].Queue == w.l.tasks[by].Queue
		w.perJob.Note(j, now, own)
		w.perTeam.Note(w.l.tasks[j].Queue, now, own)
		w.evicted[j] = append(w.evicted[j], now)
		w.chain[j] = w.chain[by] + 1
		w.handover[by] = max(w.handover[by], w.handover[j]+1)
		last := slices.IndexFunc(w.evicted[j], func(at time.Time) bool { return now.Sub(at) < turns.BudgetTime })
		r.MostEvictions, r.MostInAnHour = max(r.MostEvictions, len(w.evicted[j])), max(r.MostInAnHour, len(w.evicted[j])-last)
		r.LongestChain = max(r.LongestChain, w.chain[j])
	}
	r.LongestHandover = max(r.LongestHandover, w.handover[by])
	for _, j := range victims {
		w.waitsAgain(j)
	}
	if len(victims) > 0 {
		w.markAll()
	}
}

// allows counts victims against the rate of all evictions.
func (w *watch) allows(victims int) bool {
	return w.limiter.AllowN(w.l.clock(), min(victims, w.limits.MaxPerMinute))
}

// spares reports whether a task bears no other eviction for a queue that is not its own,
// or with own for its own.
func (w *watch) spares(i int, own bool) bool {
	return !w.perJob.Left(i, w.limits.MaxPerJob, own) || w.l.tasks[i].Queue != "" && !w.perTeam.Left(w.l.tasks[i].Queue, w.limits.MaxPerQueue, own)
}

// spare keeps what runs from evictions that it does not bear, and no longer than that.
func (w *watch) spare() {
	jobs, teams := w.perJob.Expire(w.l.clock()), w.perTeam.Expire(w.l.clock())
	if len(jobs)+len(teams) > 0 {
		w.markAll()
	}
}

func (w *watch) markAll() {
	for i, r := range w.l.running {
		if r != nil {
			w.mark(i)
		}
	}
}

// mark books whether a task that runs may be evicted.
func (w *watch) mark(i int) {
	r, pinned, spent := w.l.running[i], w.spares(i, false), w.spares(i, true)
	if r.pinned == pinned && r.spent == spent {
		return
	}
	r.pinned, r.spent = pinned, spent
	w.l.planned.mark(&w.l.tasks[i], pinned, spent)
}

// sum sums up what was measured.
func (w *watch) sum() *Bounds {
	r := &w.result
	for key, b := range w.behind {
		b.Wait = waitTimes(w.waits[key]).sum()
		r.Sizes = append(r.Sizes, *b)
	}
	slices.SortFunc(r.Sizes, func(a, b Behind) int { return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Priority, b.Priority)) })
	for of, waits := range w.owed {
		r.Owed = append(r.Owed, Owed{of.queue, of.size, waits.sum()})
	}
	slices.SortFunc(r.Owed, func(a, b Owed) int { return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Size, b.Size)) })
	r.Unserved = len(w.l.waiting)
	lost, done := float64(w.l.result.LostMilliS), float64(w.l.result.DoneMilliS)
	r.LostPercent = 100 * lost / max(1, lost+done)
	return r
}
