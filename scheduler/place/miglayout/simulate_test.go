// SPDX-License-Identifier: MPL-2.0

package miglayout

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// h100 is what NVML tells of an H100; a test of device/nvidia compares such tables with its
// simulated cards.
func h100(allowed ...string) []gpu.MIGProfile {
	all := []gpu.MIGProfile{
		{Name: "1g.10gb", Size: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}, Most: 7},
		{Name: "1g.20gb", Size: 2, Starts: []int{0, 2, 4, 6}, Most: 4},
		{Name: "2g.20gb", Size: 2, Starts: []int{0, 2, 4}, Most: 3},
		{Name: "3g.40gb", Size: 4, Starts: []int{0, 4}, Most: 2},
		{Name: "4g.40gb", Size: 4, Starts: []int{0}, Most: 1},
		{Name: "7g.80gb", Size: 8, Starts: []int{0}, Most: 1},
	}
	for n := range all {
		all[n].Allowed = len(allowed) == 0 || slices.Contains(allowed, all[n].Name)
	}
	return all
}

var kinds = []string{"1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"}

// computeOf is how many sevenths of a GPU's compute an instance has.
func computeOf(profile string) float64 {
	n, _ := strconv.Atoi(profile[:1])
	return float64(n)
}

// task is one arrival of a trace.
type task struct {
	at, takes time.Duration
	profile   string
}

// mix is how often each kind arrives, by its part of the compute, in a phase of the trace.
type mix [4]float64

// generate makes a trace of tasks that ask for a part of the compute of some GPUs. The phases
// of the mix follow each other, every few hours.
func generate(seed uint64, tasks, gpus int, load float64, mean, phase time.Duration, mixes []mix) []task {
	random := rand.New(rand.NewPCG(seed, 1))
	var all []task
	at := 0.0
	for range tasks {
		m := mixes[int(at/phase.Seconds())%len(mixes)]
		// Tasks per second of each kind, so that it has its part of the load.
		var rate [4]float64
		sum := 0.0
		for k, part := range m {
			rate[k] = part * load * float64(gpus) * 7 / computeOf(kinds[k]) / mean.Seconds()
			sum += rate[k]
		}
		at += random.ExpFloat64() / sum
		draw, k := random.Float64()*sum, 0
		for draw > rate[k] {
			draw -= rate[k]
			k++
		}
		all = append(all, task{time.Duration(at * float64(time.Second)), time.Duration(random.ExpFloat64() * float64(mean)), kinds[k]})
	}
	return all
}

// outcome is how a trace went.
type outcome struct {
	// allocated is the part of the GPUs' compute that tasks had, from the first arrival to the last.
	allocated float64
	cuts      int
	// most is how often the GPU was cut within a day that was cut most often.
	most int
	wait time.Duration // on average, of the tasks that started
	days float64
}

// world is a simulated cluster: GPUs whose tasks start on the first free instance of their
// profile, those first whose GPU has the least room, in the order of arrival.
type world struct {
	gpus    []GPU
	running map[string]time.Duration // end of the task, by instance
	ends    endings
	queue   []int
	serial  int
	cutting map[int]time.Duration // GPUs, and when their re-cut is over
	make    map[int]Cut
}

type ending struct {
	at       time.Duration
	gpu      int
	instance string
}

type endings []ending

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, j int) bool { return e[i].at < e[j].at }
func (e endings) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)        { *e = append(*e, x.(ending)) }
func (e *endings) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// cutTime is how long a GPU is out of service for a re-cut: Nomad hears of it twice.
const cutTime = 30 * time.Second

func newWorld(layouts [][]string, perDay int) *world {
	w := &world{running: map[string]time.Duration{}, cutting: map[int]time.Duration{}, make: map[int]Cut{}}
	for n, layout := range layouts {
		g := GPU{ID: fmt.Sprintf("gpu-%03d", n), Node: "node", Pool: "node", Profiles: h100(kinds...), PerDay: perDay}
		w.gpus = append(w.gpus, g)
		at := 0
		for _, name := range layout {
			p, _ := gpu.MIGProfileOf(g.Profiles, name)
			for !slices.Contains(p.Starts, at) {
				at++
			}
			w.add(n, gpu.MIGPlace{Profile: name, Start: at})
			at += p.Size
		}
	}
	return w
}

func (w *world) add(n int, at gpu.MIGPlace) {
	w.serial++
	w.gpus[n].Instances = append(w.gpus[n].Instances, Instance{MIGInstance: gpu.MIGInstance{UUID: fmt.Sprint("mig-", w.serial), MIGPlace: at}})
}

// start starts what waits where an instance is free.
func (w *world) start(now time.Duration, trace []task, started func(task int)) {
	free := map[string]int{}
	for n, g := range w.gpus {
		if _, cutting := w.cutting[n]; !cutting {
			for _, i := range g.Instances {
				if !i.Busy {
					free[i.Profile]++
				}
			}
		}
	}
	w.queue = slices.DeleteFunc(w.queue, func(t int) bool {
		if free[trace[t].profile] == 0 {
			return false
		}
		bestGPU, bestAt, bestRoom := -1, 0, math.MaxInt
		for n := range w.gpus {
			if _, cutting := w.cutting[n]; cutting {
				continue
			}
			at, room := -1, 0
			for k, i := range w.gpus[n].Instances {
				if !i.Busy {
					p, _ := gpu.MIGProfileOf(w.gpus[n].Profiles, i.Profile)
					room += p.Size
					if i.Profile == trace[t].profile {
						at = k
					}
				}
			}
			if at >= 0 && room < bestRoom {
				bestGPU, bestAt, bestRoom = n, at, room
			}
		}
		i := &w.gpus[bestGPU].Instances[bestAt]
		i.Busy = true
		free[i.Profile]--
		w.running[i.UUID] = now + trace[t].takes
		heap.Push(&w.ends, ending{now + trace[t].takes, bestGPU, i.UUID})
		started(t)
		return true
	})
}

// replay runs a trace; with rules GPUs are cut by demand.
func replay(t testing.TB, w *world, trace []task, patience time.Duration, rules *Rules) outcome {
	var o outcome
	var now time.Duration
	last := trace[len(trace)-1].at
	next, used, area := 0, 0.0, 0.0
	arrived := make([]time.Duration, len(trace))
	waited, starts := time.Duration(0), 0
	byDay := map[string]int{}
	demand := newDemand()
	review := time.Duration(0)
	for now < last {
		at := last
		if next < len(trace) {
			at = min(at, trace[next].at)
		}
		if len(w.ends) > 0 {
			at = min(at, w.ends[0].at)
		}
		for _, over := range w.cutting {
			at = min(at, over)
		}
		if rules != nil && len(w.queue) > 0 {
			at = min(at, max(review, now))
		}
		area += used * (at - now).Seconds()
		now = at
		for next < len(trace) && trace[next].at <= now {
			arrived[next] = trace[next].at
			demand.note(epoch.Add(now), trace[next])
			w.queue = append(w.queue, next)
			next++
		}
		for len(w.ends) > 0 && w.ends[0].at <= now {
			e := heap.Pop(&w.ends).(ending)
			at := slices.IndexFunc(w.gpus[e.gpu].Instances, func(i Instance) bool { return i.UUID == e.instance })
			if at < 0 {
				t.Fatalf("instance %s was removed under its task", e.instance)
			}
			w.gpus[e.gpu].Instances[at].Busy = false
			delete(w.running, e.instance)
			used -= computeOf(w.gpus[e.gpu].Instances[at].Profile)
		}
		for n, over := range w.cutting {
			if over <= now {
				for _, at := range w.make[n].Make {
					w.add(n, at)
				}
				w.gpus[n].Cutting = false
				delete(w.cutting, n)
			}
		}
		w.queue = slices.DeleteFunc(w.queue, func(t int) bool { return patience > 0 && now-arrived[t] > patience })
		w.start(now, trace, func(task int) {
			used += computeOf(trace[task].profile)
			waited += now - arrived[task]
			starts++
		})
		if rules == nil || now < review || len(w.queue) == 0 {
			continue
		}
		review = now + time.Minute
		var wants []Want // those of one kind together, since they are alike
		for _, t := range w.queue {
			if at := slices.IndexFunc(wants, func(w Want) bool { return w.Profiles[0] == trace[t].profile }); at >= 0 {
				wants[at].Count++
			} else {
				wants = append(wants, Want{Key: strconv.Itoa(t), Profiles: []string{trace[t].profile}, Count: 1, Since: epoch.Add(arrived[t])})
			}
		}
		for _, c := range Decide(epoch.Add(now), w.gpus, wants, demand.expected(epoch.Add(now)), *rules).Cuts {
			n := slices.IndexFunc(w.gpus, func(g GPU) bool { return g.ID == c.GPU })
			g := &w.gpus[n]
			for _, i := range g.Instances {
				if i.Busy && slices.Contains(c.Remove, i.UUID) {
					t.Fatalf("instance %s is in use", i.UUID)
				}
			}
			g.Instances = slices.DeleteFunc(g.Instances, func(i Instance) bool { return slices.Contains(c.Remove, i.UUID) })
			g.Cutting, w.cutting[n], w.make[n] = true, now+cutTime, c
			g.Cuts = append(g.Cuts, epoch.Add(now))
			var after []gpu.MIGPlace
			for _, i := range g.Instances {
				after = append(after, i.MIGPlace)
			}
			if err := gpu.CheckMIGPlaces(g.Profiles, append(after, c.Make...)); err != nil {
				t.Fatalf("%s: %v", c.Text, err)
			}
			o.cuts++
			key := fmt.Sprint(n, " ", now/day)
			byDay[key]++
			o.most = max(o.most, byDay[key])
		}
	}
	o.allocated = area / (float64(len(w.gpus)) * 7 * (last - trace[0].at).Seconds())
	o.days = last.Hours() / 24
	if starts > 0 {
		o.wait = waited / time.Duration(starts)
	}
	return o
}

// learnedDemand is a moving average of how many instances of each profile the arrivals need.
type learnedDemand struct {
	at   time.Time
	need map[string]float64
}

func newDemand() *learnedDemand { return &learnedDemand{need: map[string]float64{}} }

const memory = 2 * time.Hour

func (l *learnedDemand) note(now time.Time, t task) {
	l.fade(now)
	l.need[t.profile] += t.takes.Seconds() / memory.Seconds()
}

func (l *learnedDemand) fade(now time.Time) {
	keep := math.Exp(-now.Sub(l.at).Seconds() / memory.Seconds())
	for k := range l.need {
		l.need[k] *= keep
	}
	l.at = now
}

func (l *learnedDemand) expected(now time.Time) map[string]float64 {
	l.fade(now)
	return maps.Clone(l.need)
}

// knowing is an upper bound on what any re-cutter could allocate, one that knows the future as
// well: GPUs are a fluid that needs no time to be cut, has no places and moves what runs.
func knowing(trace []task, gpus int) float64 {
	capacity := float64(gpus) * 7
	type job struct{ left, width float64 }
	var jobs []job
	now, area, next := 0.0, 0.0, 0
	last := trace[len(trace)-1].at.Seconds()
	for now < last {
		at := last
		if next < len(trace) {
			at = min(at, trace[next].at.Seconds())
		}
		// The widest mix of what is there fills the pool; the longest run first, which keeps the most at once.
		slices.SortFunc(jobs, func(a, b job) int { return cmp.Compare(b.left, a.left) })
		room := capacity
		share := make([]float64, len(jobs))
		for n, j := range jobs {
			share[n] = min(room, j.width)
			room -= share[n]
			if share[n] > 0 {
				at = min(at, now+j.left*j.width/share[n])
			}
		}
		span := at - now
		for n := range jobs {
			area += share[n] * span
			jobs[n].left -= span * share[n] / jobs[n].width
		}
		jobs = slices.DeleteFunc(jobs, func(j job) bool { return j.left < 1e-6 })
		now = at
		for next < len(trace) && trace[next].at.Seconds() <= now {
			jobs = append(jobs, job{trace[next].takes.Seconds(), computeOf(trace[next].profile)})
			next++
		}
	}
	return area / (capacity * (last - trace[0].at.Seconds()))
}

// layouts are those that are tried as static ones.
var layouts = [][]string{
	{"1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"},
	{"2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb"},
	{"2g.20gb", "1g.10gb", "1g.10gb", "3g.40gb"},
	{"3g.40gb", "3g.40gb"},
	{"2g.20gb", "2g.20gb", "3g.40gb"},
	{"7g.80gb"},
}

// bestStatic looks for the static layouts that allocate the most: it begins with every uniform
// one and changes the layouts of GPUs while that helps.
func bestStatic(t testing.TB, trace []task, patience time.Duration, gpus int) (outcome, string) {
	try := func(counts []int) outcome {
		var all [][]string
		for k, n := range counts {
			for range n {
				all = append(all, layouts[k])
			}
		}
		return replay(t, newWorld(all, 0), trace, patience, nil)
	}
	var best outcome
	var chosen []int
	for k := range layouts {
		counts := make([]int, len(layouts))
		counts[k] = gpus
		if o := try(counts); o.allocated > best.allocated {
			best, chosen = o, counts
		}
	}
	for _, step := range []int{gpus / 4, gpus / 8} {
		for improved := true; improved; {
			improved = false
			for from := range layouts {
				for to := range layouts {
					counts := slices.Clone(chosen)
					if counts[from] < step || from == to {
						continue
					}
					counts[from] -= step
					counts[to] += step
					if o := try(counts); o.allocated > best.allocated+1e-4 {
						best, chosen, improved = o, counts, true
					}
				}
			}
		}
	}
	var words []string
	for k, n := range chosen {
		if n > 0 {
			words = append(words, fmt.Sprintf("%d x %s", n, strings.Join(layouts[k], "+")))
		}
	}
	return best, strings.Join(words, ", ")
}

// TestByLoadAndMix prints the table; NOMAD_GPU_TABLES=1.
func TestByLoadAndMix(t *testing.T) {
	if os.Getenv("NOMAD_GPU_TABLES") == "" {
		t.Skip("prints tables; set NOMAD_GPU_TABLES=1")
	}
	const gpus, perDay = 16, 24
	patience, _ := time.ParseDuration(os.Getenv("NOMAD_GPU_PATIENCE"))
	for _, m := range []struct {
		name  string
		phase time.Duration
		mixes []mix
	}{
		{"by day 1g and 2g, by night 3g and 7g", 12 * time.Hour, []mix{{.6, .3, .1, 0}, {.05, .05, .4, .5}}},
		{"the same all the time", 12 * time.Hour, []mix{{.3, .2, .25, .25}}},
	} {
		for _, load := range []float64{.8, 1, 1.2} {
			trace := generate(1, 10_000, gpus, load, time.Hour, m.phase, m.mixes)
			static, how := bestStatic(t, trace, patience, gpus)
			demand := replay(t, newWorld(slices.Repeat([][]string{{"7g.80gb"}}, gpus), perDay), trace, patience, &DefaultRules)
			bound := knowing(trace, gpus)
			t.Logf("%s, load %.1f: static %.1f %% (wait %s; %s), demand %.1f %% (wait %s), bound %.1f %%; %.1f re-cuts per GPU and day, %d at most", m.name, load,
				100*static.allocated, static.wait.Round(time.Minute), how, 100*demand.allocated, demand.wait.Round(time.Minute), 100*bound, float64(demand.cuts)/gpus/demand.days, demand.most)
		}
	}
}
