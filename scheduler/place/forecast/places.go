// SPDX-License-Identifier: MPL-2.0

package forecast

import (
	"cmp"
	"math"
	"slices"
)

// Places is what room for tasks of several whole GPUs is worth in a cluster where
// tasks end.
//
// In a cluster that only fills up, a broken node is filled by others and little is
// lost. Where tasks end, the GPUs that are free belong to no task: room for eight
// that is broken is the work of eight lost. Such room also needs CPU and memory, and
// it comes back when those who are in its way end, the sooner the fewer they are:
//
//	V(node) = Σ_c π_c·n_c Σ_q φ(r, j(c,q))
//
// over the classes c of such tasks and the places q = 1, 2 … that an empty node has
// for them. r is how many residents the node has and j how many of them must end
// before the q-th place is there: none if it is, else as many as hold the GPUs, the
// CPU or the memory that is missing, if all held as much. φ(r, j) = (r−j+1)/(r+1) is
// the chance that j of r have ended before the place is asked for, if all that is
// known of residents is that each is as likely to end next as the next arrival is to
// come. A placement costs V before less V after.
type Places struct {
	classes []placeClass
	Price   [maxPlaceClasses]int64 // π_c, milli per GPU
}

// maxPlaceClasses is how many classes are told apart. The rarest of more count as
// the next larger.
const maxPlaceClasses = 16

// placeClass is tasks of as many whole GPUs, on the same kinds and with about as
// much CPU.
type placeClass struct {
	gpus        int64
	cpu, memory int64   // the most of any
	kinds       []bool  // by kind
	part        float64 // of all arrivals
}

// grain of PlaceCounts: parts of a GPU.
const placeGrain = 256

// PlaceCounts is Σ_q n_c·φ by class, in grains.
type PlaceCounts [maxPlaceClasses]int16

// Minus is what a has more.
func (a *PlaceCounts) Minus(b *PlaceCounts) (out PlaceCounts) {
	for i := range a {
		out[i] = a[i] - b[i]
	}
	return out
}

// placeSteps is how many steps of CPU the largest node is divided into.
const placeSteps = 16

// NewPlaces finds the classes of a demand.
func NewPlaces(s *Supply, d *Demand, weights []float64) *Places {
	type key struct {
		gpus, cpu int64
		kinds     string
	}
	cpus := max(1, s.Largest().CPU)
	at := map[key]int{}
	pl := &Places{}
	names := make([]byte, len(s.Kinds))
	for i, e := range d.entries {
		r := e.shape
		if !r.Whole || r.GPUs < 2 || weights[i] == 0 {
			continue
		}
		kinds := make([]bool, len(s.Kinds))
		for id := range s.Kinds {
			_, kinds[id] = futureOf(r, int32(id), s.Kinds[id].Largest)
			names[id] = '0'
			if kinds[id] {
				names[id] = '1'
			}
		}
		if !slices.Contains(kinds, true) {
			continue
		}
		k := key{int64(r.GPUs), ceilDiv(r.CPU*placeSteps, cpus), string(names)}
		n, ok := at[k]
		if !ok {
			n = len(pl.classes)
			at[k] = n
			pl.classes = append(pl.classes, placeClass{gpus: k.gpus, kinds: kinds})
		}
		c := &pl.classes[n]
		c.cpu, c.memory, c.part = max(c.cpu, r.CPU), max(c.memory, r.Memory), c.part+weights[i]
	}
	slices.SortStableFunc(pl.classes, func(a, b placeClass) int {
		return cmp.Compare(b.part*float64(b.gpus), a.part*float64(a.gpus))
	})
	pl.classes = pl.classes[:min(len(pl.classes), maxPlaceClasses)]
	return pl
}

// SetPrices works out π_c = δ·1 GPU·min(1, 2·e/(S+1))·f_c/f_n, where e tasks of n
// GPUs are expected while the free GPUs are given out, S places are there for the
// class, and f_c/f_n of the tasks of n GPUs are of it.
func (pl *Places) SetPrices(s *Supply, d *Demand, weights []float64, free, turnover float64) {
	pl.Price = [maxPlaceClasses]int64{}
	var meanMilli float64
	for i, e := range d.entries {
		meanMilli += weights[i] * float64(e.shape.Milli)
	}
	if meanMilli == 0 || turnover == 0 {
		return
	}
	bySize := map[int64]float64{}
	for i := range pl.classes {
		bySize[pl.classes[i].gpus] += pl.classes[i].part
	}
	there := pl.there(s)
	for i := range pl.classes {
		c := &pl.classes[i]
		f := bySize[c.gpus]
		scarce := min(1, 2*f*free/meanMilli/(float64(there[i])+1))
		pl.Price[i] = int64(math.Round(turnover*gpuMilli*scarce*c.part/f/placePriceGrain)) * placePriceGrain
	}
}

const placePriceGrain = 5

// there is how many tasks of each class there is room for now.
func (pl *Places) there(s *Supply) (tasks [maxPlaceClasses]int64) {
	for b, alike := range s.Pools {
		for i := range pl.classes {
			if c := &pl.classes[i]; c.kinds[b.Kind] {
				tasks[i] += c.there(&b) * int64(alike)
			}
		}
	}
	return tasks
}

// there is how many tasks of the class a pool has room for now.
func (c *placeClass) there(b *Pool) int64 {
	if int64(b.Idle) < c.gpus {
		return 0 // as in most, without a division
	}
	n := int64(b.Idle) / c.gpus
	if c.cpu > 0 {
		n = min(n, b.CPU/c.cpu)
	}
	if c.memory > 0 {
		n = min(n, b.Memory/c.memory)
	}
	return max(0, n)
}

// Counts is what a pool has of every class.
func (pl *Places) Counts(b *Pool) (out PlaceCounts) {
	r, gpus, busy := int64(b.Residents), int64(b.GPUs), int64(b.GPUs-b.Idle)
	for i := range pl.classes {
		c := &pl.classes[i]
		if !c.kinds[b.Kind] {
			continue
		}
		sum := 0.0
		for q := int64(1); q*c.gpus <= gpus && q*c.cpu <= b.NodeCPU && q*c.memory <= b.NodeMemory; q++ {
			j := max(
				mustEnd(q*c.gpus-int64(b.Idle), busy, r),
				mustEnd(q*c.cpu-b.CPU, b.NodeCPU-b.CPU, r),
				mustEnd(q*c.memory-b.Memory, b.NodeMemory-b.Memory, r),
			)
			sum += float64(r-j+1) / float64(r+1)
		}
		out[i] = int16(sum * float64(c.gpus) * placeGrain)
	}
	return out
}

// mustEnd is how many of the residents must end for so much that is missing, when
// all of them together hold so much.
func mustEnd(missing, held, residents int64) int64 {
	if missing <= 0 || held <= 0 {
		return 0
	}
	if missing >= held {
		return residents // as on a full node, without a division
	}
	return min(residents, ceilDiv(missing*residents, held))
}

// Cost is what so much less of every class costs, in milli.
func (pl *Places) Cost(less *PlaceCounts) int64 {
	var sum int64
	for i, price := range pl.Price[:len(pl.classes)] {
		sum += price * int64(less[i])
	}
	return sum / placeGrain
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }
