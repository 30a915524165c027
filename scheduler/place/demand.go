package place

import (
	"slices"
	"sort"
)

// demand is the mix of requests that the cluster is expected to see. It blends
// two samples of tasks, each of which counts for a number of arrivals.
type demand struct {
	entries []demandEntry
	tasks   [samples]int64   // sums over the entries
	halved  [samples]int     // how often
	worth   [samples]float64 // arrivals
	coins   splitmix
}

// The samples of a demand: the prior, which is assumed or history, and what has
// arrived.
const (
	prior = iota
	seen
	samples
)

// demandEntry is one request shape and how often it is seen.
type demandEntry struct {
	shape   *shape
	tasks   [samples]int64
	learned float64 // weight when the demand was last learned
}

// count adds a task to a sample. After every halving it takes one more coin to be
// added at all, so that the latest tasks count no more than those before.
func (d *demand) count(sh *shape, sample int) {
	if d.coins.next()&(1<<d.halved[sample]-1) == 0 {
		d.add(sh, sample, 1)
	}
}

// add adds tasks of a shape, which belongs to this demand alone.
func (d *demand) add(sh *shape, sample int, tasks int64) {
	if sh.entry < 0 {
		sh.entry = len(d.entries)
		d.entries = append(d.entries, demandEntry{shape: sh})
	}
	d.entries[sh.entry].tasks[sample] += tasks
	d.tasks[sample] += tasks
}

func (d *demand) arrive(sh *shape) {
	d.count(sh, seen)
	d.worth[seen]++
}

// forgetPrior makes room for another prior, which counts for worth arrivals.
func (d *demand) forgetPrior(worth int64) {
	for i := range d.entries {
		d.entries[i].tasks[prior] = 0
	}
	d.tasks[prior], d.halved[prior], d.worth[prior] = 0, 0, float64(worth)
}

// thin forgets tasks until at most so many shapes are left: of the larger of the
// two samples as they are then, about half. The sample counts for as many arrivals
// as before. Coins decide, because what arrives in turns must not be forgotten in
// turns.
func (d *demand) thin(shapes int) {
	if len(d.entries) > shapes {
		d.compact()
	}
	for len(d.entries) > shapes {
		if d.tasks[prior] > d.tasks[seen] {
			d.halve(prior)
		} else {
			d.halve(seen)
		}
	}
}

func (d *demand) halve(sample int) {
	d.halved[sample]++
	d.tasks[sample] = 0
	for i := range d.entries {
		tasks := &d.entries[i].tasks[sample]
		*tasks = (*tasks + int64(d.coins.next()&1)) / 2
		d.tasks[sample] += *tasks
	}
	d.compact()
}

// compact drops the entries without tasks.
func (d *demand) compact() {
	d.entries = slices.DeleteFunc(d.entries, func(e demandEntry) bool {
		e.shape.entry = -1
		return e.tasks == [samples]int64{}
	})
	for i, e := range d.entries {
		e.shape.entry = i
	}
}

// weights returns the expected share of every entry, in entry order.
func (d *demand) weights() []float64 {
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
		out[i] = (float64(float64(e.tasks[prior])*scale[prior]) + float64(float64(e.tasks[seen])*scale[seen])) / total
	}
	return out
}

// learn makes the mix as it is now the one that drift compares with.
func (d *demand) learn() {
	for i, w := range d.weights() {
		d.entries[i].learned = w
	}
}

// drift is how far the mix is from the one that was learned: the part of the
// arrivals, 0 to 1, that is more than it was then. As much is less, or forgotten.
func (d *demand) drift() float64 {
	sum := 0.0
	for i, w := range d.weights() {
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

// splitmix is the SplitMix64 generator: small, fast, the same everywhere.
type splitmix struct{ state uint64 }

func (r *splitmix) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb
	return z ^ (z >> 31)
}

// mix folds a value into the state, to use the generator as a hash.
func (r *splitmix) mix(v uint64) {
	r.state ^= v
	r.state = r.next()
}

func (r *splitmix) float() float64 { return float64(r.next()>>11) / (1 << 53) }

// shuffled returns 0 to n-1 in random order.
func (r *splitmix) shuffled(n int) []int {
	out := make([]int, n)
	for i := range out {
		j := int(r.next() % uint64(i+1))
		out[i], out[j] = out[j], i
	}
	return out
}
