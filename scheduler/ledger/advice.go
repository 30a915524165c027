// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Advice says that a task asks for more than it uses.
type Advice struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Task      string `json:"task"`
	Queue     string `json:"queue,omitempty"`
	// Asked and Enough are requests: "16G,0.5".
	Asked  string `json:"asked"`
	Enough string `json:"enough"`
	// FreedGPUHours and FreedGiBHours are what the smaller request would have left to
	// others within the time.
	FreedGPUHours float64 `json:"freed_gpu_hours"`
	FreedGiBHours float64 `json:"freed_gib_hours"`
	Text          string  `json:"text"`
}

const (
	// leastMeasured is how many samples advice needs.
	leastMeasured = 30
	// spare is the margin above the use: compute above its 95th percentile, since a
	// task that wants more is only slower, and memory above its maximum, since it would die.
	spareCompute, spareMemory = 1.2, 1.15
	// worthwhile is the part of the request below which a smaller request is worth a change.
	worthwhile = 0.75
	// gpuMilli is the compute of a GPU.
	gpuMilli = 1000
	// stepMilli is what suggestions of compute are rounded up to.
	stepMilli = 50
)

// Adviser looks for tasks that ask for more than they use.
type Adviser struct {
	tasks map[Row]*want
}

type want struct {
	sums
	milli, mib int64 // asked for; the largest
	runs       map[string]bool
}

// NewAdviser begins.
func NewAdviser() *Adviser { return &Adviser{map[Row]*want{}} }

// Add takes an entry. Work on GPUs that tasks take turns on asks for nothing that it could
// ask less of.
func (a *Adviser) Add(e *Entry) {
	if e.AskedMilli == 0 || e.AskedMiB == 0 {
		return
	}
	key := nameOf(ByJob, e)
	w := a.tasks[key]
	if w == nil {
		w = &want{runs: map[string]bool{}}
		a.tasks[key] = w
	}
	w.add(e, 0)
	w.milli, w.mib = max(w.milli, e.AskedMilli), max(w.mib, e.AskedMiB)
	w.runs[e.Alloc] = true
}

// Advise lists the advice, what frees most first.
func (a *Adviser) Advise() []Advice {
	list := []Advice{}
	for key, w := range a.tasks {
		if text, ok := w.advise(); ok {
			text.Queue, text.Namespace, text.Job, text.Group, text.Task = key.Queue, key.Namespace, key.Job, key.Group, key.Task
			list = append(list, text)
		}
	}
	slices.SortFunc(list, func(x, y Advice) int {
		return cmp.Or(cmp.Compare(y.FreedGPUHours, x.FreedGPUHours), cmp.Compare(y.FreedGiBHours, x.FreedGiBHours),
			strings.Compare(x.Namespace+"/"+x.Job+"/"+x.Group+"/"+x.Task, y.Namespace+"/"+y.Job+"/"+y.Group+"/"+y.Task))
	})
	return list
}

func (w *want) advise() (Advice, bool) {
	milli, mib := w.milli, w.mib
	var was []string
	if w.memory.Count() >= leastMeasured {
		if enough := roundUp(float64(w.memory.Max())*spareMemory, 1024); float64(enough) <= worthwhile*float64(mib) {
			mib = enough
		}
		was = append(was, fmt.Sprintf("%s of memory (at most %s)", gibibytes(w.memory.Quantile(0.95)), gibibytes(float64(w.memory.Max()))))
	}
	if w.compute.Count() >= leastMeasured {
		p95 := w.compute.Quantile(0.95)
		if enough := roundUp(p95*spareCompute, stepMilli); float64(enough) <= worthwhile*float64(milli) {
			milli = enough
		}
		was = append(was, fmt.Sprintf("%.2f of a GPU's compute", p95/1000))
	}
	if milli == w.milli && mib == w.mib || milli >= gpuMilli {
		return Advice{}, false // a request for a part of the memory and all of the compute cannot be written
	}
	a := Advice{Asked: request(w.mib, w.milli), Enough: request(mib, milli)}
	a.FreedGPUHours = rounded(float64(w.seconds) * float64(w.milli-milli) / 1000 / 3600)
	a.FreedGiBHours = rounded(float64(w.seconds) * float64(w.mib-mib) / 1024 / 3600)
	runs := "1 run"
	if len(w.runs) > 1 {
		runs = fmt.Sprintf("%d runs", len(w.runs))
	}
	a.Text = fmt.Sprintf("asked for %s; its 95th percentile was %s, in %s of %s; %s would do",
		a.Asked, strings.Join(was, " and "), hours(w.seconds), runs, a.Enough)
	return a, true
}

// request writes memory and compute as a job does.
func request(mib, milli int64) string {
	if milli >= gpuMilli {
		return "1"
	}
	text := fmt.Sprintf("%dM", mib)
	if mib%1024 == 0 {
		text = fmt.Sprintf("%dG", mib/1024)
	}
	return fmt.Sprintf("%s,%s", text, strings.TrimRight(fmt.Sprintf("%.3f", float64(milli)/1000), "0"))
}

func gibibytes(mib float64) string { return fmt.Sprintf("%.1f GiB", mib/1024) }

func hours(seconds int64) string {
	d := time.Duration(seconds) * time.Second
	if d < time.Hour {
		return fmt.Sprintf("%.0f min", math.Max(1, d.Minutes()))
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}

// roundUp is the next multiple of a step, at least one.
func roundUp(v float64, step int64) int64 {
	return max(1, int64(math.Ceil(v/float64(step)))) * step
}
