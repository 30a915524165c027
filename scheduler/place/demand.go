package place

import (
	"math"
	"sort"
)

// demand is the mix of requests that the cluster is expected to see: a prior,
// worth a fixed number of arrivals, blended with what has arrived.
type demand struct {
	entries []demandEntry
	prior   float64 // sum of prior weights
	worth   float64 // arrivals that the prior as a whole counts for
	arrived float64 // number of arrivals
}

// demandEntry is one request shape and how often it is seen.
type demandEntry struct {
	shape *shape
	prior float64
	seen  float64
}

// entry is the entry of a shape, which belongs to this demand alone.
func (d *demand) entry(sh *shape) *demandEntry {
	if sh.entry < 0 {
		sh.entry = len(d.entries)
		d.entries = append(d.entries, demandEntry{shape: sh})
	}
	return &d.entries[sh.entry]
}

func (d *demand) addPrior(sh *shape, weight float64) {
	d.entry(sh).prior += weight
	d.prior += weight
}

// forgetPrior makes room for another prior, which counts for worth arrivals.
func (d *demand) forgetPrior(worth int64) {
	for i := range d.entries {
		d.entries[i].prior = 0
	}
	d.prior, d.worth = 0, float64(worth)
}

// weights returns the expected share of every entry, in entry order.
func (d *demand) weights() []float64 {
	out := make([]float64, len(d.entries))
	total := d.arrived
	scale := 0.0
	if d.prior > 0 {
		scale = d.worth / d.prior
		total += d.worth
	}
	if total == 0 {
		return out
	}
	for i, e := range d.entries {
		out[i] = (e.prior*scale + e.seen) / total
	}
	return out
}

// drift is how far two mixes of the same demand are apart: the part of the
// arrivals, 0 to 1, that would have to be another for them to be equal.
func drift(a, b []float64) float64 {
	sum := 0.0
	for i := range max(len(a), len(b)) {
		x, y := 0.0, 0.0
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		sum += math.Abs(x - y)
	}
	return sum / 2
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
