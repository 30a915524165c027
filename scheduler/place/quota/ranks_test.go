// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// plainRanks fills the guarantees with all work on the books, and one more claim, at once.
func plainRanks(q *Quotas, l *Ledger, more *Claim) map[string]Rank {
	ranks := map[string]Rank{}
	var work []*Claim
	for _, name := range q.names {
		work = append(work, l.Claims(name)...)
	}
	if more != nil {
		work = append(work, more)
	}
	slices.SortFunc(work, func(a, b *Claim) int { return cmp.Or(cmp.Compare(b.Priority, a.Priority), earlier(a, b)) })
	taken := map[string]Charge{}
	holds := func(path []string, more Charge) bool {
		return !slices.ContainsFunc(path, func(name string) bool { return !taken[name].Plus(more).Within(q.queues[name].Guarantee()) })
	}
	for _, c := range work {
		path := q.Path(c.Queue)
		if !q.queues[c.Queue].promised() || !holds(path[:max(1, len(path)-1)], c.Charge) {
			continue
		}
		for _, name := range path {
			taken[name] = taken[name].Plus(c.Charge)
		}
		ranks[c.ID] = Rank{leaf: true, root: true, priority: c.Priority}
	}
	for _, c := range work {
		if ranks[c.ID].leaf {
			continue
		}
		own, root := Unranked(c.Priority), q.root(c.Queue)
		if c.Queue != root && q.queues[root].promised() && holds([]string{root}, c.Charge) {
			taken[root] = taken[root].Plus(c.Charge)
			own.root = true
		}
		ranks[c.ID] = own
	}
	return ranks
}

// TestRanksAreAsOnAFreshLook follows random books, and compares with the plain way.
func TestRanksAreAsOnAFreshLook(t *testing.T) {
	q := quotas(t,
		Queue{Name: "org", GuaranteeMilli: 12000, GuaranteeMemoryMiB: 900}, Queue{Name: "a", Parent: "org", GuaranteeMilli: 4000},
		Queue{Name: "b", Parent: "org", GuaranteeMemoryMiB: 500}, Queue{Name: "ab", Parent: "a", GuaranteeMilli: 2000}, Queue{Name: "lends", Parent: "org"},
		Queue{Name: "safe", GuaranteeMilli: 2000}, Queue{Name: "guest"}, Queue{Name: "below-guest", Parent: "guest"},
	)
	names := append(slices.Clone(q.names), "", "nobody")
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		books, ranks, seen, all := &Ledger{}, (*Ranks)(nil), map[string]Rank{}, []*Claim(nil)
		booked := map[string]bool{} // since the last look
		claim := func(id string) Claim {
			c := Claim{ID: id, Queue: names[rng.IntN(len(names))], Priority: 10 * rng.IntN(4), Charge: Charge{int64(rng.IntN(1500)), int64(rng.IntN(150))}}
			if rng.IntN(3) > 0 {
				c.Start = noon.Add(time.Duration(rng.IntN(50)) * time.Minute)
			}
			return c
		}
		for step := range 300 {
			switch n := rng.IntN(10); {
			case n < 5 || len(all) == 0:
				c := claim(fmt.Sprint(step))
				books.Book(&c)
				booked[c.ID] = true
				all = append(all, &c)
			case n < 8:
				i := rng.IntN(len(all))
				books.Free(all[i])
				all = slices.Delete(all, i, i+1)
			default: // it starts, or is of another queue now
				i := rng.IntN(len(all))
				books.Free(all[i])
				n := claim(all[i].ID)
				again := all[i].Again(n.ID, n.Queue, n.Priority, n.Start, n.Charge)
				books.Book(&again)
				booked[again.ID] = true
				all[i] = &again
			}
			if rng.IntN(4) > 0 {
				continue // so that several changes lie between two looks
			}
			if ranks == nil {
				ranks = NewRanks(q, books)
			}
			if rng.IntN(20) == 0 {
				books.dropped, books.changes = books.end(), nil // it fell behind what is kept
			}
			want := plainRanks(q, books, nil)
			for _, id := range ranks.Follow() {
				if was, told := seen[id]; told && was == want[id] && !booked[id] {
					t.Fatalf("seed %d, step %d: %s is said to be of another rank than %+v", seed, step, id, was)
				}
				seen[id] = want[id]
			}
			clear(booked)
			maps.DeleteFunc(seen, func(id string, _ Rank) bool {
				_, there := want[id]
				if _, ranked := ranks.Rank(id); ranked && !there {
					t.Fatalf("seed %d, step %d: %s is ranked still", seed, step, id)
				}
				return !there
			})
			if !maps.Equal(seen, want) {
				t.Fatalf("seed %d, step %d: what was told of ranks adds up to %+v, want %+v", seed, step, seen, want)
			}
			for _, c := range all {
				got, ok := ranks.Rank(c.ID)
				if w, there := want[c.ID]; got != w || ok != there {
					t.Fatalf("seed %d, step %d: %+v has rank %+v, want %+v", seed, step, *c, got, w)
				}
			}
			next := claim("new")
			next.Start, next.seq = time.Time{}, math.MaxInt64
			wantNew := Unranked(next.Priority)
			if q.root(next.Queue) != "" {
				wantNew = plainRanks(q, books, &next)["new"]
			}
			next.seq = 0
			if got := ranks.RankOf(next); got != wantNew {
				t.Fatalf("seed %d, step %d: %+v would have rank %+v, want %+v", seed, step, next, got, wantNew)
			}
			if got, want := ranks.Borrows(next), q.queues[next.Queue].promised() && !wantNew.leaf; got != want {
				t.Fatalf("seed %d, step %d: %+v would borrow: %v, want %v", seed, step, next, got, want)
			}
		}
	}
}

// TestRanksOutliveWhatTheLedgerKeeps: whoever looks seldom reads all work again.
func TestRanksOutliveWhatTheLedgerKeeps(t *testing.T) {
	q, books := quotas(t, Queue{Name: "a", GuaranteeMilli: 2000}), &Ledger{}
	ranks := NewRanks(q, books)
	books.Book(&Claim{ID: "stays", Queue: "a", Charge: Charge{Milli: 1}})
	ends := &Claim{ID: "ends", Queue: "a", Charge: Charge{Milli: 1}}
	books.Book(ends)
	ranks.Follow()
	books.Free(ends)
	for range 3 * keptChanges {
		c := &Claim{ID: "short", Queue: "a", Charge: Charge{Milli: 1}}
		books.Book(c)
		books.Free(c)
	}
	books.Book(&Claim{ID: "last", Queue: "a", Charge: Charge{Milli: 1}})
	if len(books.changes) > 2*keptChanges {
		t.Errorf("%d changes are kept", len(books.changes))
	}
	if changed := ranks.Follow(); !slices.Equal(changed, []string{"last"}) {
		t.Errorf("of another rank are %v", changed)
	}
	for id, want := range map[string]bool{"last": true, "stays": true, "ends": false, "short": false} {
		if r, ok := ranks.Rank(id); ok != want || r.leaf != want {
			t.Errorf("%s has rank %+v, %v", id, r, ok)
		}
	}
}

// Ranks that are looked at often take over what has changed, and do not read all work again.
func TestRanksFollowWhatChanges(t *testing.T) {
	q, books := quotas(t, Queue{Name: "a", GuaranteeMilli: 2000}, Queue{Name: "b"}), &Ledger{}
	ranks := NewRanks(q, books)
	first, passes := &Claim{ID: "first", Queue: "a", Charge: Charge{Milli: 1}}, &Claim{ID: "passes", Queue: "b", Charge: Charge{Milli: 1}}
	books.Book(first)
	ranks.Follow()
	known := ranks.ranked["first"]
	for _, change := range []func(){func() { books.Book(passes) }, func() { books.Free(passes) }, func() {}, func() { books.Book(&Claim{ID: "free"}) }} {
		change()
		ranks.Follow()
		if ranks.ranked["first"] != known {
			t.Fatal("work that did not change was read again")
		}
	}
	for name, tree := range ranks.trees {
		if tree.stale {
			t.Errorf("the guarantees of %s are filled once more at the next look", name)
		}
		if rest := tree.rest[:cap(tree.rest)]; slices.ContainsFunc(rest, func(h *held) bool { return h != nil }) {
			t.Errorf("%s holds on to work that may have ended", name)
		}
	}
	if !ranks.Of(q) || ranks.Of(quotas(t)) {
		t.Error("they are not by their quotas")
	}
}

// Work whose priority was changed on the books is not found among the others when it ends. All
// is read again then.
func TestRanksOfWorkThatWasChanged(t *testing.T) {
	q, books := quotas(t, Queue{Name: "a", GuaranteeMilli: 2000}), &Ledger{}
	list := make([]*Claim, 3)
	for i := range list {
		list[i] = &Claim{ID: fmt.Sprint(i), Queue: "a", Priority: 50, Charge: Charge{Milli: 1000}}
		books.Book(list[i])
	}
	ranks := NewRanks(q, books)
	ranks.Follow()
	list[0].Priority = 10
	books.Free(list[0])
	if changed := ranks.Follow(); !slices.Equal(changed, []string{"2"}) {
		t.Errorf("of another rank are %v", changed)
	}
	if r, ok := ranks.Rank("0"); ok {
		t.Errorf("what has ended has rank %+v", r)
	}
}

// What work takes is kept by priority, in one step of each.
func TestStepsAreByPriority(t *testing.T) {
	var steps []step
	if got := takenInAll(steps); got != (Charge{}) {
		t.Errorf("no work takes %v", got)
	}
	for i, c := range []struct {
		priority int
		want     []step
	}{
		{80, []step{{80, Charge{1, 0}}}},
		{80, []step{{80, Charge{2, 0}}}},
		{50, []step{{80, Charge{2, 0}}, {50, Charge{3, 0}}}},
		{50, []step{{80, Charge{2, 0}}, {50, Charge{4, 0}}}},
		{10, []step{{80, Charge{2, 0}}, {50, Charge{4, 0}}, {10, Charge{5, 0}}}},
	} {
		if steps = stepDown(steps, c.priority, Charge{Milli: int64(i + 1)}); !slices.Equal(steps, c.want) {
			t.Fatalf("with %d of priority %d: %v, want %v", i+1, c.priority, steps, c.want)
		}
		if got := takenInAll(steps); got != (Charge{Milli: int64(i + 1)}) {
			t.Errorf("%d take %v", i+1, got)
		}
	}
	for priority, want := range map[int]int64{100: 0, 81: 0, 80: 2, 79: 2, 51: 2, 50: 4, 11: 4, 10: 5, 0: 5} {
		if got := takenFrom(steps, priority); got != (Charge{Milli: want}) {
			t.Errorf("work of priority %d and above takes %v, want %d", priority, got, want)
		}
	}
}

// A queue without a guarantee borrows nothing, whatever those above it hold, nor does one that is
// not there; what fits by its priority does not borrow either.
func TestWhoBorrows(t *testing.T) {
	q := quotas(t,
		Queue{Name: "org", GuaranteeMilli: 4000}, Queue{Name: "mid", Parent: "org", GuaranteeMilli: 1000},
		Queue{Name: "lends", Parent: "mid"}, Queue{Name: "own", Parent: "mid", GuaranteeMilli: 1000},
	)
	full, _ := booked("own 1000 0 50")
	ranks := NewRanks(q, full)
	ranks.Follow()
	for _, c := range []struct {
		queue    string
		priority int
		want     bool
	}{{"own", 50, true}, {"own", 51, false}, {"mid", 50, true}, {"org", 50, false}, {"lends", 50, false}, {"gone", 50, false}, {"", 50, false}} {
		if got := ranks.Borrows(Claim{ID: "new", Queue: c.queue, Priority: c.priority, Charge: Charge{Milli: 1}}); got != c.want {
			t.Errorf("of %q with priority %d it borrows: %v", c.queue, c.priority, got)
		}
	}
}
