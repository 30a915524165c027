package place

import (
	"cmp"
	"math"
	"slices"
)

// places is what room for tasks of several whole GPUs is worth in a cluster where
// tasks end.
//
// In a cluster that only fills up, a broken node is filled by others and little is
// lost. Where tasks end, the GPUs that are free belong to nobody: room for eight
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
type places struct {
	classes []placeClass
	price   [maxPlaceClasses]int64 // π_c, milli per GPU
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

// grain of placeCounts: parts of a GPU.
const placeGrain = 256

// placeCounts is Σ_q n_c·φ by class, in grains.
type placeCounts [maxPlaceClasses]int16

func (a *placeCounts) minus(b *placeCounts) (out placeCounts) {
	for i := range a {
		out[i] = a[i] - b[i]
	}
	return out
}

// placeSteps is how many steps of CPU the largest node is divided into.
const placeSteps = 16

func newPlaces(s *Snapshot, d *demand, weights []float64) *places {
	type key struct {
		gpus, cpu int64
		kinds     string
	}
	biggest := make([]size, len(s.kinds))
	var cpus int64 = 1
	for id := range biggest {
		biggest[id] = s.biggest(int32(id))
		cpus = max(cpus, biggest[id].cpu)
	}
	at := map[key]int{}
	pl := &places{}
	names := make([]byte, len(s.kinds))
	for i, e := range d.entries {
		r := &e.shape.req
		if !r.Whole || r.GPUs < 2 || weights[i] == 0 {
			continue
		}
		kinds := make([]bool, len(s.kinds))
		for id := range s.kinds {
			_, kinds[id] = futureOf(s, e.shape, int32(id), biggest[id])
			names[id] = '0'
			if kinds[id] {
				names[id] = '1'
			}
		}
		if !slices.Contains(kinds, true) {
			continue
		}
		k := key{int64(r.GPUs), ceilDiv(r.CPUMHz*placeSteps, cpus), string(names)}
		n, ok := at[k]
		if !ok {
			n = len(pl.classes)
			at[k] = n
			pl.classes = append(pl.classes, placeClass{gpus: k.gpus, kinds: kinds})
		}
		c := &pl.classes[n]
		c.cpu, c.memory, c.part = max(c.cpu, r.CPUMHz), max(c.memory, r.MemoryMiB), c.part+weights[i]
	}
	slices.SortStableFunc(pl.classes, func(a, b placeClass) int {
		return cmp.Compare(b.part*float64(b.gpus), a.part*float64(a.gpus))
	})
	pl.classes = pl.classes[:min(len(pl.classes), maxPlaceClasses)]
	return pl
}

// setPrices works out π_c = δ·1 GPU·min(1, 2·e/(S+1))·f_c/f_n, where e tasks of n
// GPUs are expected while what is free is given out, S places are there for the
// class, and f_c/f_n of the tasks of n GPUs are of it.
func (pl *places) setPrices(s *Snapshot, d *demand, weights []float64, free, turnover float64) {
	pl.price = [maxPlaceClasses]int64{}
	var meanMilli float64
	for i, e := range d.entries {
		meanMilli += weights[i] * milliOf(&e.shape.req)
	}
	if meanMilli == 0 || turnover == 0 {
		return
	}
	bySize := map[int64]float64{}
	for i := range pl.classes {
		bySize[pl.classes[i].gpus] += pl.classes[i].part
	}
	for i := range pl.classes {
		c := &pl.classes[i]
		there := 0.0
		for _, b := range s.banks {
			if b != nil && b.kind >= 0 && c.kinds[b.kind] {
				there += float64(c.there(b))
			}
		}
		f := bySize[c.gpus]
		scarce := min(1, 2*f*free/meanMilli/(there+1))
		pl.price[i] = int64(math.Round(turnover*gpuMilli*scarce*c.part/f/placePriceGrain)) * placePriceGrain
	}
}

const placePriceGrain = 5

// there is how many tasks of the class a bank has room for now.
func (c *placeClass) there(b *bank) int64 {
	n := int64(b.idle) / c.gpus
	if c.cpu > 0 {
		n = min(n, b.node.cpu/c.cpu)
	}
	if c.memory > 0 {
		n = min(n, b.node.memory/c.memory)
	}
	return max(0, n)
}

// counts is what a bank has of every class with so many GPUs idle, so much CPU and
// memory free and so many residents.
func (pl *places) counts(b *bank, idle int32, cpu, memory int64, residents int) (out placeCounts) {
	n := &b.node.spec
	r, busy := int64(residents), int64(len(b.cells))-int64(idle)
	for i := range pl.classes {
		c := &pl.classes[i]
		if !c.kinds[b.kind] {
			continue
		}
		sum := 0.0
		for q := int64(1); q*c.gpus <= int64(len(b.cells)) && q*c.cpu <= n.CPUMHz && q*c.memory <= n.MemoryMiB; q++ {
			j := max(
				mustEnd(q*c.gpus-int64(idle), busy, r),
				mustEnd(q*c.cpu-cpu, n.CPUMHz-cpu, r),
				mustEnd(q*c.memory-memory, n.MemoryMiB-memory, r),
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
	return min(residents, ceilDiv(missing*residents, held))
}

// cost is what so much less of every class costs, in milli.
func (pl *places) cost(less *placeCounts) int64 {
	var sum int64
	for i := range pl.classes {
		sum += pl.price[i] * int64(less[i])
	}
	return sum / placeGrain
}

// breaks is what placing a shape on a bank that it fits takes away, so that so many
// GPUs stay idle.
func (p *Planner) breaks(sh *shape, b *bank, idle int32) placeCounts {
	if b.kind < 0 {
		return placeCounts{}
	}
	n := b.node
	before := p.places.counts(b, b.idle, n.cpu, n.memory, len(n.holders))
	after := p.places.counts(b, idle, n.cpu-sh.req.CPUMHz, n.memory-sh.req.MemoryMiB, len(n.holders)+1)
	return before.minus(&after)
}
