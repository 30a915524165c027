// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"slices"
	"sort"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/splitmix"
)

// Demand is the mix of requests that the cluster is expected to see. It blends
// two samples of tasks; each counts for a number of arrivals.
type Demand struct {
	entries []demandEntry
	tasks   [samples]int64   // sums over the entries
	halved  [samples]int     // how often
	worth   [samples]float64 // arrivals
	coins   splitmix.Source
}

// The samples of a demand: the prior, which is assumed or history, and the tasks
// that arrived.
const (
	Prior = iota
	Seen
	samples
)

// demandEntry is one request shape and how often it is seen.
type demandEntry struct {
	shape   *Shape
	tasks   [samples]int64
	learned float64 // weight when the demand was last learned
}

// Count adds a task to a sample. After every halving it takes one more coin to be
// added at all, so that the latest tasks count no more than those before.
func (d *Demand) Count(sh *Shape, sample int) {
	if d.coins.Next()&(1<<d.halved[sample]-1) == 0 {
		d.Add(sh, sample, 1)
	}
}

// Shapes is how many shapes are told apart.
func (d *Demand) Shapes() int { return len(d.entries) }

// Add adds tasks of a shape, which belongs to this demand alone.
func (d *Demand) Add(sh *Shape, sample int, tasks int64) {
	if sh.entry == 0 {
		sh.entry = len(d.entries) + 1
		d.entries = append(d.entries, demandEntry{shape: sh})
	}
	d.entries[sh.entry-1].tasks[sample] += tasks
	d.tasks[sample] += tasks
}

// Arrive counts a task that arrives.
func (d *Demand) Arrive(sh *Shape) {
	d.Count(sh, Seen)
	d.worth[Seen]++
}

// ForgetPrior makes room for another prior, which counts for worth arrivals.
func (d *Demand) ForgetPrior(worth int64) {
	for i := range d.entries {
		d.entries[i].tasks[Prior] = 0
	}
	d.tasks[Prior], d.halved[Prior], d.worth[Prior] = 0, 0, float64(worth)
}

// Thin forgets tasks until at most that number of shapes is left: of the larger of the
// two samples as they are then, about half. The sample counts for as many arrivals
// as before. Coins decide, because what arrives in turns must not be forgotten in
// turns.
func (d *Demand) Thin(shapes int) {
	if len(d.entries) > shapes {
		d.compact()
	}
	for len(d.entries) > shapes {
		if d.tasks[Prior] > d.tasks[Seen] {
			d.halve(Prior)
		} else {
			d.halve(Seen)
		}
	}
}

func (d *Demand) halve(sample int) {
	d.halved[sample]++
	d.tasks[sample] = 0
	for i := range d.entries {
		tasks := &d.entries[i].tasks[sample]
		*tasks = (*tasks + int64(d.coins.Next()&1)) / 2
		d.tasks[sample] += *tasks
	}
	d.compact()
}

// compact drops the entries without tasks.
func (d *Demand) compact() {
	d.entries = slices.DeleteFunc(d.entries, func(e demandEntry) bool {
		e.shape.entry = 0
		return e.tasks == [samples]int64{}
	})
	for i, e := range d.entries {
		e.shape.entry = i + 1
	}
}

// Weights returns the expected share of every entry, in entry order.
func (d *Demand) Weights() []float64 {
	out := make([]float64, len(d.entries))
	var scale [samples]float64
	total := 0.0
	for i, tasks := range d.tasks {
		if tasks > 0 {
			scale[i] = d.worth[i] / float64(tasks)
			total += d.worth[i]
		}
	}
	if total == 0 {
		return out
	}
	for i, e := range d.entries {
		// Products are rounded before they are added: a fused multiply-add, which
		// some processors have, would give other answers there.
		out[i] = (float64(float64(e.tasks[Prior])*scale[Prior]) + float64(float64(e.tasks[Seen])*scale[Seen])) / total
	}
	return out
}

// Coarse reports that tasks share GPUs and hardly any takes little of one: capacity
// beside them stays idle unless a task fits exactly.
func (d *Demand) Coarse() bool {
	shared, small := d.shared(d.Weights())
	return shared > 0 && small < fewSmall*shared
}

// ArrivesCoarse reports that of the arrivals, too, or that too few tasks have come to
// tell.
func (d *Demand) ArrivesCoarse() bool {
	tasks := make([]float64, len(d.entries))
	for i := range d.entries {
		tasks[i] = float64(d.entries[i].tasks[Seen])
	}
	shared, small := d.shared(tasks)
	return shared < enoughShared || small < fewSmall*shared
}

// shared sums up the tasks that share GPUs, and those of them that take little of one.
func (d *Demand) shared(tasks []float64) (all, small float64) {
	for i, n := range tasks {
		sh := d.entries[i].shape
		if sh.GPUs != 1 || sh.Whole {
			continue
		}
		all += n
		if sh.Milli <= smallShare {
			small += n
		}
	}
	return all, small
}

// smallShare is little of a GPU, in milli, and fewSmall which part of the shared GPUs'
// tasks is hardly any. Of fewer than enoughShared tasks nothing is told.
const smallShare, fewSmall, enoughShared = 150, 0.005, 1000

// Several is the part of the GPUs that is asked for by tasks of several.
func (d *Demand) Several() float64 {
	var several, all float64
	for i, w := range d.Weights() {
		sh := d.entries[i].shape
		milli := w * float64(sh.Milli)
		all += milli
		if sh.GPUs > 1 {
			several += milli
		}
	}
	if all == 0 {
		return 0
	}
	return several / all
}

// Learn makes the mix as it is now the one that drift compares with.
func (d *Demand) Learn() {
	for i, w := range d.Weights() {
		d.entries[i].learned = w
	}
}

// Drift is how far the mix is from the one that was learned: the part of the
// arrivals, 0 to 1, that is more than it was then. As much is less, or forgotten.
func (d *Demand) Drift() float64 {
	sum := 0.0
	for i, w := range d.Weights() {
		sum += max(0, w-d.entries[i].learned)
	}
	return sum
}

// sampler finds entries by weight.
type sampler struct{ sums []float64 }

func newSampler(weights []float64) *sampler {
	s := &sampler{sums: make([]float64, len(weights))}
	sum := 0.0
	for i, w := range weights {
		sum += w
		s.sums[i] = sum
	}
	return s
}

func (s *sampler) total() float64 {
	if len(s.sums) == 0 {
		return 0
	}
	return s.sums[len(s.sums)-1]
}

// at returns the entry at a part, from 0 up to 1, of the summed weights.
func (s *sampler) at(u float64) int {
	x := u * s.total()
	return min(sort.Search(len(s.sums), func(i int) bool { return s.sums[i] > x }), len(s.sums)-1)
}
