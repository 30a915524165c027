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
				seen[id] = want[id]
			}
			maps.DeleteFunc(seen, func(id string, _ Rank) bool { _, there := want[id]; return !there })
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
		}
	}
}

// TestRanksOutliveWhatTheLedgerKeeps: whoever looks seldom reads all work again.
func TestRanksOutliveWhatTheLedgerKeeps(t *testing.T) {
	q, books := quotas(t, Queue{Name: "a", GuaranteeMilli: 1000}), &Ledger{}
	ranks := NewRanks(q, books)
	ranks.Follow()
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
	if r, ok := ranks.Rank("last"); !ok || !r.leaf {
		t.Errorf("the last has rank %+v, %v", r, ok)
	}
}
