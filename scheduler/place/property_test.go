// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/score"
)

var propertyOps = flag.Int("place.ops", 20000, "random operations per property run; 1000000 is the full test")

// world is a snapshot under random operations, with an own record of what must
// be in it.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	snap   *Snapshot
	plan   *Planner
	nodes  []string // IDs there now
	usages []string // IDs there now
	serial int
	now    time.Time
}

func newWorld(t *testing.T, seed uint64, quotas bool) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 7)), snap: NewSnapshot(), now: time.Unix(1_000_000, 0)}
	weights := DefaultWeights()
	weights.Rough.Streams, weights.Fine.Streams, weights.RepriceEvery, weights.LiveRepriceEvery, weights.DemandShapes = 2, 4, 50, 50, 500
	w.plan = NewPlanner(w.snap, PolicyBalanced, weights)
	if quotas {
		q, err := NewQuotas([]Queue{
			{Name: "org", GuaranteeMilli: 24000, LimitMilli: 40000},
			{Name: "a", Parent: "org", GuaranteeMilli: 8000, LimitMilli: 30000},
			{Name: "b", Parent: "org", GuaranteeMilli: 12000},
			{Name: "c", GuaranteeMilli: 4000, GuaranteeMemoryMiB: 100 << 10},
			{Name: "d", GuaranteeMemoryMiB: 150 << 10, LimitMemoryMiB: 400 << 10, Protected: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.plan.SetQuotas(q, nil)
	}
	for range 12 {
		w.addNode()
	}
	return w
}

func (w *world) id(prefix string) string {
	w.serial++
	return fmt.Sprintf("%s%06d", prefix, w.serial)
}

func (w *world) addNode() {
	n := Node{ID: w.id("n"), CPUMHz: int64(16000 * (1 + w.rng.IntN(6))), MemoryMiB: int64(65536 * (1 + w.rng.IntN(6))), Pool: []string{"default", "gpu"}[w.rng.IntN(2)]}
	model := []string{"A100", "V100", "T4"}[w.rng.IntN(3)]
	for i := range w.rng.IntN(9) {
		g := GPU{
			ID: fmt.Sprint(n.ID, "-", i), Vendor: "nvidia", Model: "NVIDIA " + model, Type: model, Mode: gpu.ModeSlice,
			MemoryMiB: 32768, SliceMiB: 1024, Slices: 31, NUMA: i / 4, MeasuredMilli: Unmeasured, MeasuredMemoryMiB: Unmeasured,
		}
		switch w.rng.IntN(6) {
		case 0:
			g.Mode, g.SliceMiB, g.Slices = gpu.ModeWhole, 0, 0
		case 1:
			g.Mode, g.SliceMiB, g.Slices, g.Replicas = gpu.ModeShared, 0, 0, 4
		}
		n.GPUs = append(n.GPUs, g)
	}
	if err := w.snap.AddNode(n); err != nil {
		w.t.Fatal(err)
	}
	w.nodes = append(w.nodes, n.ID)
}

func (w *world) removeNode() {
	if len(w.nodes) < 6 {
		return
	}
	i := w.rng.IntN(len(w.nodes))
	gone, err := w.snap.RemoveNode(w.nodes[i])
	if err != nil {
		w.t.Fatal(err)
	}
	w.nodes = slices.Delete(w.nodes, i, i+1)
	for _, u := range gone {
		w.forget(u.ID)
	}
}

func (w *world) forget(id string) {
	i := slices.Index(w.usages, id)
	if i < 0 {
		w.t.Fatalf("usage %q is not on record", id)
	}
	w.usages = slices.Delete(w.usages, i, i+1)
}

// flipGPU changes the health or cordon of a GPU, or a node's eligibility.
func (w *world) flipGPU() {
	n := w.snap.Nodes[w.nodes[w.rng.IntN(len(w.nodes))]].Spec
	n.GPUs = slices.Clone(n.GPUs)
	if len(n.GPUs) == 0 || w.rng.IntN(4) == 0 {
		n.Ineligible = !n.Ineligible
	} else if g := &n.GPUs[w.rng.IntN(len(n.GPUs))]; w.rng.IntN(2) == 0 {
		g.Unhealthy = !g.Unhealthy
	} else {
		g.Cordoned = !g.Cordoned
	}
	if err := w.snap.UpdateNode(n); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) request() Request {
	r := Request{
		ID: w.id("u"), CPUMHz: int64(w.rng.IntN(8)) * 1000, MemoryMiB: int64(w.rng.IntN(8)) * 2048,
		Priority: 10 * w.rng.IntN(8), Policy: Policy(w.rng.IntN(4)),
	}
	if w.plan.quotas != nil {
		r.Queue = []string{"", "a", "b", "c", "d"}[w.rng.IntN(5)]
	}
	if w.rng.IntN(8) == 0 {
		r.Pools = []string{"gpu"}
	}
	if w.rng.IntN(8) == 0 {
		r.MinRun = time.Hour
	}
	switch w.rng.IntN(9) {
	case 0:
		return r
	case 1:
		r.GPUs, r.Shared = 1, true
	case 2, 3:
		r.GPUs, r.Whole = 1, true
	case 4:
		r.GPUs, r.Whole, r.Close = 2+w.rng.IntN(3), true, w.rng.IntN(2) == 0
	case 5:
		r.GPUs, r.MemoryMiBPerGPU = 1, int64(1+w.rng.IntN(33))*1000
	case 6:
		r.GPUs, r.MemoryMiBPerGPU, r.ShareMilli = 1, int64(1+w.rng.IntN(16))*1024, int64(1+w.rng.IntN(999))
	default:
		r.GPUs, r.ShareMilli = 1, int64(1+w.rng.IntN(999))
	}
	if w.rng.IntN(5) == 0 {
		r.Models = []string{[]string{"A100", "V100", "T4"}[w.rng.IntN(3)]}
	}
	return r
}

func (w *world) apply(u Usage) {
	u.Start = w.now
	if err := w.snap.Apply(u); err != nil {
		w.t.Fatalf("a placement cannot be booked: %v", err)
	}
	w.usages = append(w.usages, u.ID)
	w.plan.Started()
}

// place checks that the answer is the same twice, that it is the best of all
// pools evaluated afresh, and that a refusal means that no pool fits.
func (w *world) place() {
	r := w.request()
	w.plan.Arrive(&r)
	pl, err := w.plan.Place(&r)
	if again, err2 := w.plan.Place(&r); fmt.Sprint(again, err2) != fmt.Sprint(pl, err) {
		w.t.Fatalf("same input, other answer: %v %v, then %v %v", pl, err, again, err2)
	}
	if errors.Is(err, ErrQuota) {
		return
	}
	w.explain(&r)
	sh := w.plan.shapeOf(&r)
	best, at := int32(score.Worst), -1
	for id, b := range w.snap.Pools {
		if b == nil || sh.Fit(w.snap, b) != fit.Fits {
			continue
		}
		if pts := w.plan.scorer.Score(sh.Task, b); pts > best {
			best, at = pts, id
		}
	}
	if (at < 0) != (err != nil) {
		w.t.Fatalf("request %+v: error %v, but the best pool is %d", r, err, at)
	}
	if at < 0 {
		return
	}
	if first := w.plan.placement(&r, sh, w.snap.Pools[at]); w.plan.withinLimits(&first.Usage) != nil {
		w.apply(pl.Usage) // on a kind of GPU that costs its queue less
		return
	}
	if got := w.snap.Pools[at].Node.Spec.ID; got != pl.NodeID || int64(best) != pl.Score {
		w.t.Fatalf("request %+v: placed on %s with %d, best is %s with %d", r, pl.NodeID, pl.Score, got, best)
	}
	w.apply(pl.Usage)
}

func (w *world) release() {
	if len(w.usages) == 0 {
		return
	}
	id := w.usages[w.rng.IntN(len(w.usages))]
	before := w.fingerprint()
	u, err := w.snap.Release(id)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.snap.Apply(u); err == nil { // an overfull node need not take it back
		if after := w.fingerprint(); after != before {
			w.t.Fatalf("release and apply do not restore:\n%s\n%s", before, after)
		}
		if _, err := w.snap.Release(id); err != nil {
			w.t.Fatal(err)
		}
	}
	w.plan.Ended()
	w.forget(id)
}

// preempt checks that planning changes nothing, that victims may be evicted
// and are all needed, and that the plan can be carried out.
func (w *world) preempt() {
	rs := []Request{w.request()}
	for range w.rng.IntN(3) {
		rs = append(rs, w.request())
	}
	before := w.fingerprint()
	plan, err := w.plan.Preempt(rs, w.now)
	if after := w.fingerprint(); after != before {
		w.t.Fatalf("planning changed the snapshot:\n%s\n%s", before, after)
	}
	if err != nil {
		if !errors.Is(err, ErrNoRoom) && !errors.Is(err, ErrQuota) {
			w.t.Fatal(err)
		}
		return
	}
	top := slices.MaxFunc(rs, func(a, b Request) int { return a.Priority - b.Priority }).Priority
	for _, v := range plan.Victims {
		if v.Protected(w.now) || (w.plan.quotas == nil && v.Priority >= top) {
			w.t.Fatalf("victim %+v for requests up to priority %d", v, top)
		}
		if _, err := w.snap.Release(v.ID); err != nil {
			w.t.Fatal(err)
		}
		w.forget(v.ID)
	}
	for _, pl := range plan.Placements {
		w.apply(pl.Usage)
	}
	for _, v := range plan.Victims {
		if w.plan.withinLimits(&v) == nil && w.snap.Apply(v) == nil {
			w.t.Fatalf("victim %+v was not needed", v)
		}
	}
}

func (w *world) gang() {
	rs := []Request{w.request(), w.request(), w.request()}
	before := w.fingerprint()
	pls, err := w.plan.PlaceGang(rs)
	if after := w.fingerprint(); after != before {
		w.t.Fatalf("placing a gang changed the snapshot")
	}
	if err != nil {
		return
	}
	for _, pl := range pls {
		w.apply(pl.Usage)
	}
}

func (w *world) rebalance() {
	before := w.fingerprint()
	moves := w.plan.Rebalance(Rebalancing{Moves: 2, PoolsPerMove: 2}, w.now)
	if after := w.fingerprint(); after != before {
		w.t.Fatalf("rebalancing changed the snapshot")
	}
	for _, m := range moves {
		if _, err := w.snap.Release(m.From.ID); err != nil {
			w.t.Fatal(err)
		}
		w.forget(m.From.ID)
		w.apply(m.To.Usage)
	}
}

// relieve checks that looking for moves for what waits changes nothing, and that they can be
// carried out.
func (w *world) relieve() {
	rs := []Request{w.request()}
	for range w.rng.IntN(3) {
		rs = append(rs, w.request())
	}
	before := w.fingerprint()
	relief, err := w.plan.RoomByMoving(rs, time.Hour, Rebalancing{Moves: 3}, w.now)
	if after := w.fingerprint(); after != before {
		w.t.Fatalf("looking for moves changed the snapshot")
	}
	if err != nil {
		if !errors.Is(err, ErrNoRoom) && !errors.Is(err, ErrQuota) && !errors.Is(err, ErrUnpaid) {
			w.t.Fatal(err)
		}
		return
	}
	for _, m := range relief.Moves {
		if m.From.Protected(w.now) {
			w.t.Fatalf("%+v is moved", m.From)
		}
		if _, err := w.snap.Release(m.From.ID); err != nil {
			w.t.Fatal(err)
		}
		w.forget(m.From.ID)
	}
	for _, pl := range relief.Placements {
		w.apply(pl.Usage)
	}
	for _, m := range relief.Moves {
		w.apply(m.To.Usage)
	}
}

// fingerprint is everything that planning depends on, in a fixed order.
func (w *world) fingerprint() string {
	var b strings.Builder
	for _, id := range w.nodes {
		n := w.snap.Nodes[id]
		fmt.Fprint(&b, id, n.CPU, n.Memory, w.snap.Evictables[n.Pools[0].ID])
		for _, bk := range n.Pools {
			fmt.Fprint(&b, bk.GPUs, bk.Idle, bk.Free, bk.Used, bk.Measured, bk.Shares)
		}
		for _, u := range n.Holders {
			fmt.Fprint(&b, u.ID)
		}
	}
	for _, q := range []string{"org", "a", "b", "c", "d"} {
		fmt.Fprint(&b, w.snap.Held(q))
	}
	fmt.Fprint(&b, len(w.snap.Usages))
	for i := range w.snap.Stock {
		fmt.Fprint(&b, w.snap.Stock[i].Free, w.snap.Stock[i].GPUs)
	}
	return b.String()
}

// check recounts the books from the usages.
func (w *world) check(overfull bool) {
	if len(w.snap.Usages) != len(w.usages) {
		w.t.Fatalf("%d usages, want %d", len(w.snap.Usages), len(w.usages))
	}
	if known, most := w.plan.demand.Shapes(), w.plan.weights.DemandShapes; known > most {
		w.t.Fatalf("the demand holds %d shapes, at most %d are meant", known, most)
	}
	ranks := map[int]int{}
	for _, u := range w.snap.Usages {
		ranks[u.Priority]++
	}
	if !maps.Equal(ranks, w.snap.Priorities) {
		w.t.Fatalf("work by priority: %v on the books, %v counted", w.snap.Priorities, ranks)
	}
	free := make([]int64, len(w.snap.Kinds))
	queues := map[string]Charge{}
	for _, id := range w.nodes {
		w.checkNode(w.snap.Nodes[id], overfull, free, queues)
	}
	for i := range free {
		if w.snap.Stock[i].Free != free[i] {
			w.t.Fatalf("kind %d: %d milli free on the books, %d counted", i, w.snap.Stock[i].Free, free[i])
		}
	}
	for q, held := range queues {
		if w.snap.Held(q) != held {
			w.t.Fatalf("queue %q: %+v on the books, %+v counted", q, w.snap.Held(q), held)
		}
	}
	if q := w.plan.quotas; q != nil {
		for _, name := range q.Names() {
			if used, most := q.Used(w.snap, name), q.Queue(name).Limit(); !used.Within(most) {
				w.t.Fatalf("queue %q holds %+v of at most %+v", name, used, most)
			}
		}
	}
}

func (w *world) checkNode(n *cluster.NodeState, overfull bool, free []int64, queues map[string]Charge) {
	cpu, memory := n.Spec.CPUMHz, n.Spec.MemoryMiB
	gpus := make([]cluster.GPUState, len(n.Spec.GPUs))
	for i := range gpus {
		gpus[i] = cluster.NewGPUState(&n.Spec.GPUs[i])
	}
	for _, u := range n.Holders {
		cpu, memory = cpu-u.CPUMHz, memory-u.MemoryMiB
		for _, t := range u.Takes {
			c := &gpus[t.GPU]
			c.Milli, c.Slices, c.Replicas, c.Tasks = c.Milli-int32(t.Milli), c.Slices-int32(t.Slices), c.Replicas-int32(t.Replicas), c.Tasks+1
		}
		if u.Queue != "" {
			queues[u.Queue] = queues[u.Queue].Plus(w.snap.ChargeOn(n, u.Takes))
		}
	}
	if cpu != n.CPU || memory != n.Memory || (!overfull && (cpu < 0 || memory < 0)) {
		w.t.Fatalf("node %s: %d MHz and %d MiB free, counted %d and %d", n.Spec.ID, n.CPU, n.Memory, cpu, memory)
	}
	for i, want := range gpus {
		at := n.Where[i]
		got := at.Pool.GPUs[at.Index]
		want.Share, want.Busy = got.Share, cluster.GPUMilli-want.Milli
		if turns := n.Spec.GPUs[i].Replicas; turns > 0 {
			want.Busy = int32((turns - int64(want.Replicas)) * cluster.GPUMilli / turns)
		}
		if got != want || (!overfull && (got.Milli < 0 || got.Slices < 0 || got.Replicas < 0)) {
			w.t.Fatalf("node %s GPU %d: %+v, counted %+v", n.Spec.ID, i, got, want)
		}
		if n.Spec.GPUs[i].Mode == gpu.ModeWhole && got.Tasks > 1 {
			w.t.Fatalf("node %s GPU %d: %d tasks on a whole GPU", n.Spec.ID, i, got.Tasks)
		}
	}
	for _, b := range n.Pools {
		if b.Kind >= 0 {
			free[b.Kind] += b.Free
		}
	}
}

func TestRandomOperationsKeepTheBooks(t *testing.T) {
	for _, quotas := range []bool{false, true} {
		t.Run(fmt.Sprint("quotas=", quotas), func(t *testing.T) {
			w := newWorld(t, 1, quotas)
			for range *propertyOps / 2 {
				w.now = w.now.Add(time.Minute)
				switch op := w.rng.IntN(100); {
				case op < 45:
					w.place()
				case op < 84:
					w.release()
				case op < 92:
					w.preempt()
				case op < 95:
					w.gang()
				case op < 96:
					w.flipGPU()
				case op < 97:
					w.removeNode()
				case op < 98 && w.rng.IntN(2) == 0:
					w.rebalance()
				case op < 98:
					w.relieve()
				case op < 99 && len(w.nodes) < 20:
					w.addNode()
				}
				w.check(false)
			}
		})
	}
}

// Evicted work asks again at once, with the right to evict in turn. This must
// come to rest.
func TestPreemptionHasNoCycles(t *testing.T) {
	for seed := range uint64(20) {
		w := newWorld(t, seed, true)
		var queue []Request
		for range 150 {
			queue = append(queue, w.request())
		}
		known := map[string]Request{}
		steps := 0
		for len(queue) > 0 {
			if steps++; steps > 20000 {
				t.Fatalf("seed %d: %d tasks still evict each other", seed, len(queue))
			}
			r := queue[0]
			queue = queue[1:]
			r.MinRun = 0
			known[r.ID] = r
			plan, err := w.plan.Preempt([]Request{r}, w.now)
			if err != nil {
				continue
			}
			for _, v := range plan.Victims {
				if _, err := w.snap.Release(v.ID); err != nil {
					t.Fatal(err)
				}
				w.forget(v.ID)
				queue = append(queue, known[v.ID])
			}
			w.apply(plan.Placements[0].Usage)
		}
	}
}
