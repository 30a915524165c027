package place

import "slices"

// demand is the mix of requests that the cluster is expected to see: a prior,
// worth a fixed number of arrivals, blended with what has arrived.
type demand struct {
	entries []demandEntry
	index   map[shapeKey]int
	prior   float64 // sum of prior weights
	arrived float64 // number of arrivals
}

// demandEntry is one request shape and how often it is seen.
type demandEntry struct {
	shape *shape
	prior float64
	seen  float64
}

func newDemand() *demand { return &demand{index: map[shapeKey]int{}} }

func (d *demand) entry(key shapeKey, sh *shape) *demandEntry {
	at, ok := d.index[key]
	if !ok {
		at = len(d.entries)
		d.index[key] = at
		d.entries = append(d.entries, demandEntry{shape: sh})
	}
	return &d.entries[at]
}

// weights returns the expected share of every entry, in entry order. The prior
// as a whole counts for worth arrivals.
func (d *demand) weights(worth float64) []float64 {
	out := make([]float64, len(d.entries))
	total := d.arrived
	scale := 0.0
	if d.prior > 0 {
		scale = worth / d.prior
		total += worth
	}
	if total == 0 {
		return out
	}
	for i, e := range d.entries {
		out[i] = (e.prior*scale + e.seen) / total
	}
	return out
}

// sampler draws entries by weight with a fixed random stream.
type sampler struct {
	sums []float64
	rng  splitmix
}

func newSampler(weights []float64, seed uint64) *sampler {
	s := &sampler{sums: make([]float64, len(weights)), rng: splitmix{seed}}
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

func (s *sampler) draw() int {
	x := s.rng.float() * s.total()
	at, _ := slices.BinarySearch(s.sums, x)
	return min(at, len(s.sums)-1)
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

func (r *splitmix) float() float64 { return float64(r.next()>>11) / (1 << 53) }
