// SPDX-License-Identifier: MPL-2.0

package sim

import "math/rand/v2"

// scorer rates a node for a task that it fits: the higher the better, with the
// GPUs that it would use.
type scorer interface {
	score(m *machine, t *Task) (int64, []int)
}

// baseline is a published policy: score every node that fits, take the first
// best in node order. Scores are cached per task shape and node and computed
// again only when the node has changed.
type baseline struct {
	cluster *cluster
	scorer  scorer
	shapes  map[taskKey]*scoreRow
}

// scoreRow is the cached scores of one task shape.
type scoreRow struct {
	version []int32
	score   []int64
	gpus    [][]int
}

// unfit is the score of a node that the task does not fit.
const unfit = -1 << 62

func newBaseline(nodes []Node, s scorer) *baseline {
	return &baseline{cluster: newCluster(nodes), scorer: s, shapes: map[taskKey]*scoreRow{}}
}

// Arrive implements Placer: baselines learn nothing.
func (b *baseline) Arrive(*Task, float64) {}

// End implements Placer.
func (b *baseline) End(t *Task, s Spot, _ float64) { b.cluster.nodes[s.Node].free(t, s.GPUs) }

// Place implements Placer.
func (b *baseline) Place(t *Task, _ float64) (Spot, bool) {
	row := b.row(t)
	best, at := int64(unfit), -1
	for i := range b.cluster.nodes {
		if m := &b.cluster.nodes[i]; row.version[i] != m.version {
			b.rescore(row, i, t)
		}
		if row.score[i] > best {
			best, at = row.score[i], i
		}
	}
	if at < 0 {
		return Spot{}, false
	}
	gpus := row.gpus[at]
	b.cluster.nodes[at].book(t, gpus)
	return Spot{Node: at, GPUs: gpus}, true
}

func (b *baseline) rescore(row *scoreRow, i int, t *Task) {
	m := &b.cluster.nodes[i]
	row.version[i], row.score[i] = m.version, unfit
	if m.fits(t) {
		row.score[i], row.gpus[i] = b.scorer.score(m, t)
	}
}

func (b *baseline) row(t *Task) *scoreRow {
	key := keyOf(t)
	row := b.shapes[key]
	if row == nil {
		n := len(b.cluster.nodes)
		row = &scoreRow{version: make([]int32, n), score: make([]int64, n), gpus: make([][]int, n)}
		b.shapes[key] = row
	}
	return row
}

// NewBestFit is the baseline BestFit: the node with the least CPU and GPU left
// over, in parts of the largest node, rounded to 1/100 as published.
func NewBestFit(nodes []Node) Placer {
	s := bestFit{}
	for _, n := range nodes {
		s.cpu = max(s.cpu, n.CPUMilli)
		s.gpu = max(s.gpu, int64(n.GPUs)*gpuMilli)
	}
	return newBaseline(nodes, s)
}

type bestFit struct{ cpu, gpu int64 }

func (s bestFit) score(m *machine, t *Task) (int64, []int) {
	var free int64
	for _, g := range m.gpus {
		free += g
	}
	left := 0.5*float64(m.cpu-t.CPUMilli)/float64(max(s.cpu, 1)) + 0.5*float64(free-t.Demand())/float64(max(s.gpu, 1))
	return int64((1 - left) * 100), m.tightest(t)
}

// NewRandom is the baseline Random: any node that fits, any GPU that fits.
func NewRandom(nodes []Node, seed uint64) Placer {
	return &random{cluster: newCluster(nodes), rng: rand.New(rand.NewPCG(seed, 0))}
}

type random struct {
	cluster *cluster
	rng     *rand.Rand
}

// Arrive implements Placer: it learns nothing.
func (r *random) Arrive(*Task, float64) {}

// End implements Placer.
func (r *random) End(t *Task, s Spot, _ float64) { r.cluster.nodes[s.Node].free(t, s.GPUs) }

// Place implements Placer.
func (r *random) Place(t *Task, _ float64) (Spot, bool) {
	var fit []int
	for i := range r.cluster.nodes {
		if r.cluster.nodes[i].fits(t) {
			fit = append(fit, i)
		}
	}
	if len(fit) == 0 {
		return Spot{}, false
	}
	at := fit[r.rng.IntN(len(fit))]
	m := &r.cluster.nodes[at]
	var gpus []int
	for _, i := range r.rng.Perm(len(m.gpus)) {
		if len(gpus) < t.GPUs && m.holds(i, t) {
			gpus = append(gpus, i)
		}
	}
	m.book(t, gpus)
	return Spot{Node: at, GPUs: gpus}, true
}
