// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// waitingJobs is a service with jobs of several queues, which come, wait and go.
type waitingJobs struct {
	*servicetest.Service
	t    *testing.T
	rng  *rand.Rand
	asks []admit.Ask
}

func newWaitingJobs(t *testing.T, seed uint64) *waitingJobs {
	w := &waitingJobs{t: t, rng: rand.New(rand.NewPCG(seed, 3))}
	w.Service = servicetest.New(t, queues, servicetest.Machine("a", 8), servicetest.Machine("b", 8))
	for i := range 12 {
		a := servicetest.Ask(fmt.Sprintf("job-%d", i), []string{"1", "4G", "1", "1"}[i%4], 1)
		a.Namespace, a.Priority = []string{"x", "y", "free", "nobody"}[i%4], 10*(1+i%3)
		w.asks = append(w.asks, a)
	}
	return w
}

func (w *waitingJobs) step() {
	a := w.asks[w.rng.IntN(len(w.asks))]
	key := servicetest.KeyOf(a)
	switch w.rng.IntN(7) {
	case 0, 1:
		if answers, err := w.Decide(w.t.Context(), []admit.Ask{a}, false); err == nil {
			w.Settle(w.t.Context(), []admit.Ask{a}, answers, true)
			w.Register(a)
		}
	case 2, 3:
		w.Block(a, w.rng.IntN(4))
	case 4:
		w.State.Apply([]nomad.Change{{Unblocked: &key}}, 100)
	case 5:
		w.State.Apply([]nomad.Change{{JobGone: &key}}, 100)
	default:
		w.Register(a)
		id := fmt.Sprintf("alloc-%s-%d", a.JobID, w.rng.IntN(3))
		w.Run(a, id, "a", w.rng.IntN(8), 0, 4)
		if w.rng.IntN(2) == 0 {
			w.End(id)
		}
	}
	w.Pass(time.Duration(w.rng.IntN(40)) * time.Second)
}

// byForce is what waits, found without memory.
func (w *waitingJobs) byForce(tx *state.Tx, kinds ...string) []string {
	var list []*state.Waiting
	for _, a := range w.asks {
		key := servicetest.KeyOf(a)
		j := tx.Cluster.Job(key)
		if j == nil || j.Stopped || tx.Cluster.Blocked(key) == nil {
			continue
		}
		for _, g := range j.Groups {
			held := ""
			if r := tx.Queue.Record(key); r != nil && r.Groups[g.Name].Decision.Hold != nil {
				held = r.Groups[g.Name].Decision.Hold.Kind
			}
			if missing := tx.Cluster.Blocked(key).Allocs(g.Name); missing > 0 && (len(kinds) == 0 || slices.Contains(kinds, held)) {
				list = append(list, &state.Waiting{Job: key, Group: g.Name, Missing: missing, Turn: tx.Queue.Turn(key, g.Name, j.Priority, g.Queue, 0), Held: held})
			}
		}
	}
	order := tx.Planner().Order()
	slices.SortFunc(list, func(x, y *state.Waiting) int { return order.Compare(x.Turn, y.Turn) })
	return waitingText(list)
}

func waitingText(list []*state.Waiting) (text []string) {
	for _, w := range list {
		text = append(text, fmt.Sprintf("%s/%s %d %q %d %s", w.Job, w.Group, w.Missing, w.Held, w.Turn.Priority, w.Turn.Queue))
	}
	return text
}

// owed is what waits for room costs, found without memory.
func (w *waitingJobs) owed(tx *state.Tx, queue string, without nomad.JobKey) (sum place.Charge) {
	for _, a := range w.asks {
		key := servicetest.KeyOf(a)
		r, j := tx.Queue.Record(key), tx.Cluster.Job(key)
		if r == nil || j == nil || key == without || tx.Cluster.Blocked(key) == nil {
			continue
		}
		for name, missing := range tx.Cluster.Blocked(key).Missing {
			q := tx.Cluster.QueueOf(key, name)
			g, known := r.Groups[name]
			if known && g.Decision.Hold == nil && q != nil && tx.Config().Within(q.Name, queue) {
				sum = sum.Plus(g.Cost.Times(int64(max(0, missing-tx.Capacity.Assumed(key, name)))))
			}
		}
	}
	return sum
}

// TestWhatWaitsIsAsOnAFreshLook: whatever happens, the order of what waits, and what it
// owes, is what a look at each job would say.
func TestWhatWaitsIsAsOnAFreshLook(t *testing.T) {
	held, owed := 0, 0
	for seed := range uint64(20) {
		s := newWaitingJobs(t, seed)
		for n := range 80 {
			s.step()
			s.State.Do(func(tx *state.Tx) {
				tx.Expire()
				for _, kinds := range [][]string{nil, {""}, {view.WaitsForQuota}, {"", view.WaitsForQuota}} {
					got, want := slices.Collect(tx.Queue.Waiting()), s.byForce(tx, kinds...)
					if kinds != nil {
						got = slices.Collect(tx.Queue.Waiting(kinds...))
					}
					if !slices.Equal(waitingText(got), want) {
						t.Errorf("waiting for %q:\ngot  %q\nwant %q", kinds, waitingText(got), want)
					}
					if len(kinds) == 1 && kinds[0] != "" {
						held += len(want)
					}
				}
				if some := len(slices.Collect(tx.Queue.Waiting())) > 0; tx.Queue.AnyWaiting() != some {
					t.Errorf("anything waits: %v", !some)
				}
				for _, queue := range []string{"org", "x", "y", "free"} {
					for _, without := range []nomad.JobKey{{}, servicetest.KeyOf(s.asks[n%len(s.asks)])} {
						got, want := tx.Queue.Owed(queue, without), s.owed(tx, queue, without)
						if got != want {
							t.Errorf("queue %s without %s: %s are owed, want %s", queue, without, got, want)
						}
						if got != (place.Charge{}) {
							owed++
						}
					}
				}
			})
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, n)
			}
		}
	}
	if held == 0 || owed == 0 {
		t.Errorf("nothing was held (%d) or owed (%d)", held, owed)
	}
}

// TestAlikeAreThoseThatAskForTheSame: what is found out for one of them holds for all.
func TestAlikeAreThoseThatAskForTheSame(t *testing.T) {
	s := servicetest.New(t, queues, servicetest.Machine("a", 1))
	full := job("nobody", "full", 50)
	s.Register(full)
	s.Run(full, "alloc", "a", 0, 0, 16)
	wait := func(id string, change func(*admit.Ask)) {
		a := servicetest.Ask(id, "4G", 1)
		a.Namespace = "nobody"
		change(&a)
		s.Submit(t, a)
		s.Register(a)
		s.Block(a, 1)
	}
	same := func(*admit.Ask) {}
	wait("one", same)
	wait("two", same)
	wait("cpu", func(a *admit.Ask) { a.CPUMHz++ })
	wait("rank", func(a *admit.Ask) { a.Priority++ })
	wait("space", func(a *admit.Ask) { a.Namespace = "free" })
	wait("gang", func(a *admit.Ask) { a.Gang = true })
	wait("apart", func(a *admit.Ask) { a.Distinct = admit.DistinctInJob })
	direct := servicetest.Ask("direct", "4G", 1)
	direct.Namespace = "nobody"
	s.Show(direct, false)
	s.Block(direct, 1)
	alike := map[string]string{}
	s.State.View(func(r *state.Reader) {
		for _, w := range slices.Collect(r.Queue.Waiting()) {
			alike[w.Job.ID] = w.Alike
		}
	})
	if alike["one"] == "" || alike["one"] != alike["two"] {
		t.Errorf("two that ask for the same: %q and %q", alike["one"], alike["two"])
	}
	for _, id := range []string{"cpu", "rank", "space"} {
		if alike[id] == "" || alike[id] == alike["one"] {
			t.Errorf("%s asks for something else: %q", id, alike[id])
		}
	}
	for _, id := range []string{"gang", "apart", "direct"} {
		if alike[id] != "" {
			t.Errorf("%s has something of its own: %q", id, alike[id])
		}
	}
}
