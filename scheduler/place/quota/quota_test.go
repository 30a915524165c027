// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// org has two teams, of which one is promised memory only.
func org(t *testing.T) *Quotas {
	t.Helper()
	q, err := New([]Queue{
		{Name: "org", GuaranteeMilli: 6000, LimitMilli: 8000, GuaranteeMemoryMiB: 500},
		{Name: "a", Parent: "org", GuaranteeMilli: 2000},
		{Name: "b", Parent: "org", GuaranteeMemoryMiB: 500, LimitMemoryMiB: 800},
		{Name: "safe", GuaranteeMilli: 1000, Protected: true},
		{Name: "guest"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// booked keeps the books of some claims, given as "queue milli memory priority".
func booked(lines ...string) (*Ledger, map[string]*Claim) {
	l, all := &Ledger{}, map[string]*Claim{}
	for i, line := range lines {
		c := &Claim{ID: fmt.Sprint(i)}
		_, _ = fmt.Sscan(line, &c.Queue, &c.Charge.Milli, &c.Charge.MemoryMiB, &c.Priority)
		all[c.ID] = c
		l.Book(c)
	}
	return l, all
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		why    string
		queues []Queue
	}{
		{"a queue has no name", []Queue{{}}},
		{`queue "a" is there twice`, []Queue{{Name: "a"}, {Name: "a"}}},
		{`queue "a": parent "b" does not exist`, []Queue{{Name: "a", Parent: "b"}}},
		{`queue "a" is its own ancestor`, []Queue{{Name: "a", Parent: "b"}, {Name: "b", Parent: "a"}}},
		{`queue "a": a quota is negative`, []Queue{{Name: "a", LimitMilli: -1}}},
		{`queue "a": a quota is negative`, []Queue{{Name: "a", GuaranteeMemoryMiB: -1}}},
		{`queue "a": a quota is negative`, []Queue{{Name: "a", GuaranteeMilli: -1}}},
		{`queue "a": a quota is negative`, []Queue{{Name: "a", LimitMemoryMiB: -1}}},
		{`queue "a" is its own ancestor`, []Queue{{Name: "a", Parent: "a"}}},
		{`queue "a" is promised 9 MiB and may hold at most 8 MiB`, []Queue{{Name: "a", GuaranteeMemoryMiB: 9, LimitMemoryMiB: 8}}},
		{`queue "z" is promised 1 MiB, its children together 2 MiB`, []Queue{
			{Name: "z", GuaranteeMemoryMiB: 1}, {Name: "b", Parent: "z", GuaranteeMemoryMiB: 1}, {Name: "c", Parent: "z", GuaranteeMemoryMiB: 1},
		}},
		{`queue "a" is promised 3 GPUs and may hold at most 2 GPUs`, []Queue{{Name: "a", GuaranteeMilli: 3000, LimitMilli: 2000}}},
		{`queue "a" is promised 1 GPUs, its children together 1.5 GPUs`, []Queue{
			{Name: "a", GuaranteeMilli: 1000}, {Name: "b", Parent: "a", GuaranteeMilli: 700}, {Name: "c", Parent: "a", GuaranteeMilli: 800},
		}},
	} {
		if _, err := New(c.queues); err == nil || !strings.Contains(err.Error(), c.why) {
			t.Errorf("%v, want %q", err, c.why)
		}
	}
}

// What is exactly as much as allowed is not refused, nor is a tree as deep as there are queues.
func TestNewTakesWhatIsAllowed(t *testing.T) {
	chain := []Queue{{Name: "0", GuaranteeMilli: 2000, LimitMilli: 2000, GuaranteeMemoryMiB: 5, LimitMemoryMiB: 5}}
	for i := range 9 {
		above := chain[i]
		above.Name, above.Parent = fmt.Sprint(i+1), above.Name
		chain = append(chain, above)
	}
	for _, queues := range [][]Queue{nil, {{Name: "a"}}, chain, chain[:1], chain[:2], {{Name: "a"}, {Name: "b", Parent: "a", GuaranteeMilli: 9}}} {
		if _, err := New(queues); err != nil {
			t.Errorf("%+v: %v", queues, err)
		}
	}
}

func TestChargesInWords(t *testing.T) {
	for _, c := range []struct {
		charge Charge
		want   string
	}{
		{Charge{2500, 0}, "2.5 GPUs"}, {Charge{0, 81920}, "80 GiB"}, {Charge{1000, 10}, "1 GPUs and 10 MiB"}, {Charge{}, "0 GPUs"},
	} {
		if got := c.charge.String(); got != c.want {
			t.Errorf("%+v reads %q, want %q", c.charge, got, c.want)
		}
	}
}

func TestChargesAreCompared(t *testing.T) {
	a, b := Charge{3000, 10}, Charge{2000, 20}
	for _, c := range []struct {
		what      string
		got, want Charge
	}{
		{"the larger", a.Larger(b), Charge{3000, 20}},
		{"the smaller", a.Smaller(b), Charge{2000, 10}},
		{"beyond", a.Beyond(b), Charge{1000, 0}},
		{"beyond what is not bounded", a.Beyond(Charge{0, 4}), Charge{0, 6}},
		{"a third", a.Part(3), Charge{1000, 3}},
		{"a part that bounds still", Charge{1, 0}.Part(8), Charge{1, 0}},
		{"all", a.Part(0), a},
		{"taken back", a.Plus(b.Times(-1)), Charge{1000, -10}},
	} {
		if c.got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, c.got, c.want)
		}
	}
	if a.Within(b) || !a.Within(Charge{3000, 0}) || !a.Within(a) {
		t.Error("a charge is within less, or not within itself")
	}
}

func TestLimitsBind(t *testing.T) {
	q := org(t)
	books, _ := booked("a 5000 100 50", "b 1000 700 50", "guest 500 5 50")
	for _, c := range []struct {
		queue string
		more  Charge
		why   string
		short Charge
	}{
		{"a", Charge{2000, 1000}, "", Charge{}},
		{"a", Charge{2001, 0}, "queue org holds 6 of at most 8 GPUs, and this needs 2.001", Charge{Milli: 1}},
		{"b", Charge{0, 101}, "queue b holds 700 MiB of at most 800 MiB of GPU memory, and this needs 101 MiB", Charge{MemoryMiB: 1}},
		{"b", Charge{0, 100}, "", Charge{}},
		{"guest", Charge{100_000, 0}, "", Charge{}},
		{"", Charge{100_000, 0}, "", Charge{}},
		{"nobody", Charge{}, "there is no queue nobody", Charge{}},
	} {
		if got := q.Over(books, c.queue, c.more); got != c.why {
			t.Errorf("%q and %v: %q, want %q", c.queue, c.more, got, c.why)
		}
		err := q.Limited(books, c.queue, c.more)
		var over *Error
		if (err != nil) != (c.why != "") || err != nil && (!errors.Is(err, ErrOver) || !errors.As(err, &over) || over.Why != c.why) {
			t.Errorf("%q and %v: error %v", c.queue, c.more, err)
		}
		if got := q.Deficit(books, c.queue, c.more); got != c.short {
			t.Errorf("%q and %v: short by %v, want %v", c.queue, c.more, got, c.short)
		}
	}
	if got := q.Over(&Ledger{}, "org", Charge{Milli: 9000}); got != "queue org may hold at most 8 GPUs, and this needs 9" {
		t.Errorf("an empty queue: %q", got)
	}
	full, _ := booked("b 0 900 50")
	if got := q.Over(full, "b", Charge{}); got != "queue b holds 900 MiB of at most 800 MiB of GPU memory" {
		t.Errorf("nothing more: %q", got)
	}
	if got := q.Excess(full, "b"); got != (Charge{MemoryMiB: 100}) {
		t.Errorf("excess %v", got)
	}
}

func TestWhatIsLeft(t *testing.T) {
	q := org(t)
	books, _ := booked("a 5000 100 50", "b 1000 700 50")
	for _, c := range []struct {
		queue string
		want  Charge
	}{
		{"a", Charge{2000, 0}}, {"b", Charge{2000, 100}}, {"org", Charge{2000, 0}}, {"guest", Charge{}}, {"", Charge{}},
	} {
		if got := q.Left(books, c.queue); got != c.want {
			t.Errorf("%q: %v is left, want %v", c.queue, got, c.want)
		}
	}
	full, _ := booked("a 9000 0 50")
	if got := q.Left(full, "a"); got != (Charge{Milli: 1}) {
		t.Errorf("of a full queue %v is left, want the least that bounds", got)
	}
}

func TestUsedAndBorrowed(t *testing.T) {
	q := org(t)
	books, all := booked("a 5000 100 50", "b 1000 700 50", "guest 500 5 50", "safe 400 0 50")
	for _, c := range []struct {
		queue          string
		used, borrowed Charge
	}{
		{"org", Charge{6000, 800}, Charge{0, 300}},
		{"a", Charge{5000, 100}, Charge{3000, 0}},
		{"b", Charge{1000, 700}, Charge{0, 200}},
		{"guest", Charge{500, 5}, Charge{500, 5}}, // it has nothing of its own
		{"safe", Charge{400, 0}, Charge{}},
	} {
		if used, borrowed := q.Used(books, c.queue), q.Borrowed(books, c.queue); used != c.used || borrowed != c.borrowed {
			t.Errorf("%s uses %v and has borrowed %v, want %v and %v", c.queue, used, borrowed, c.used, c.borrowed)
		}
	}
	books.Free(all["0"])
	books.Free(all["0"]) // not there any more
	if used := q.Used(books, "org"); used != (Charge{1000, 700}) || len(books.Claims("a")) != 0 {
		t.Errorf("org uses %v after what a held is gone", used)
	}
}

// Work that comes back keeps its place among equals.
func TestLedgerKeepsTheOrder(t *testing.T) {
	books, all := booked("a 1 0 50", "a 2 0 50", "a 3 0 50")
	books.Free(all["1"])
	again := all["1"].Again("1", "a", 50, time.Time{}, Charge{Milli: 7})
	books.Book(&again)
	var ids []string
	for _, c := range books.Claims("a") {
		ids = append(ids, c.ID)
	}
	if got := strings.Join(ids, " "); got != "0 1 2" || books.Held("a") != (Charge{Milli: 11}) {
		t.Errorf("claims %s hold %v", got, books.Held("a"))
	}
	nobody := &Claim{ID: "x", Charge: Charge{Milli: 5}}
	books.Book(nobody)
	books.Free(nobody)
	if books.Held("") != (Charge{}) || len(books.Claims("")) != 0 {
		t.Errorf("work without a queue is on the books")
	}
}

func TestRanks(t *testing.T) {
	q := org(t)
	leaf, root := Rank{true, true, 50}, Rank{true, false, 50}
	for _, c := range []struct {
		name  string
		lines []string
		want  []Rank
	}{
		{"what came first has the guarantee", []string{"a 2000 0 50", "a 1000 0 50"}, []Rank{leaf, root}},
		{"or is of higher priority", []string{"a 2000 0 50", "a 1000 0 60"}, []Rank{root, {true, true, 60}}},
		{"what does not fit is passed over", []string{"a 2001 0 50", "a 2000 0 50"}, []Rank{root, leaf}},
		{"children fill the root's", []string{"a 2000 0 50", "a 3000 0 50", "a 1000 0 50", "a 1 0 50"}, []Rank{leaf, root, root, {priority: 50}}},
		{"memory apart", []string{"b 0 500 50", "b 0 1 50"}, []Rank{leaf, {priority: 50}}},
		{"a queue of its own", []string{"safe 1000 0 50", "safe 1 0 50"}, []Rank{leaf, {priority: 50}}},
		{"without a guarantee", []string{"guest 1 0 50"}, []Rank{{priority: 50}}},
	} {
		books, all := booked(c.lines...)
		ranks := NewRanks(q, books)
		ranks.Follow()
		for i, want := range c.want {
			if got, _ := ranks.Rank(fmt.Sprint(i)); got != want {
				t.Errorf("%s: %q has rank %+v, want %+v", c.name, c.lines[i], got, want)
			}
		}
		last := all[fmt.Sprint(len(c.lines)-1)]
		books.Free(last)
		ranks.Follow()
		if got, want := ranks.RankOf(Claim{ID: "new", Queue: last.Queue, Priority: last.Priority, Charge: last.Charge}), c.want[len(c.want)-1]; got != want {
			t.Errorf("%s: the last would have rank %+v, want %+v", c.name, got, want)
		}
		borrows := ranks.Borrows(Claim{ID: "new", Queue: last.Queue, Priority: last.Priority, Charge: last.Charge})
		if want := last.Queue != "guest" && !c.want[len(c.want)-1].leaf; borrows != want { // guest has no guarantee to borrow above
			t.Errorf("%s: the last would borrow: %v, want %v", c.name, borrows, want)
		}
	}
	if got := NewRanks(q, &Ledger{}).RankOf(Claim{ID: "x", Queue: "nobody", Priority: 3}); got != Unranked(3) {
		t.Errorf("an unknown queue gives rank %+v", got)
	}
}

// The guarantee of every queue above bounds what is a queue's own, except the root's.
func TestGuaranteesBoundFromAbove(t *testing.T) {
	q, err := New([]Queue{
		{Name: "org", GuaranteeMilli: 3000, GuaranteeMemoryMiB: 500},
		{Name: "department", Parent: "org", GuaranteeMilli: 2000, GuaranteeMemoryMiB: 500},
		{Name: "a", Parent: "department", GuaranteeMemoryMiB: 500},
		{Name: "0", GuaranteeMilli: 1000},
	})
	if err != nil {
		t.Fatal(err)
	}
	books, _ := booked("a 2000 10 50", "a 1000 10 50", "a 1 10 50", "0 1000 0 50")
	ranks := NewRanks(q, books)
	ranks.Follow()
	for id, want := range map[string]Rank{"0": {true, true, 50}, "1": {true, false, 50}, "2": {priority: 50}, "3": {true, true, 50}} {
		if got, ok := ranks.Rank(id); !ok || got != want {
			t.Errorf("%s has rank %+v, %v, want %+v", id, got, ok, want)
		}
	}
	full, _ := booked("a 2000 10 50")
	ranks = NewRanks(q, full)
	ranks.Follow()
	for milli, want := range map[int64]bool{0: false, 1: true} {
		if got := ranks.Borrows(Claim{ID: "new", Queue: "a", Priority: 50, Charge: Charge{milli, 10}}); got != want {
			t.Errorf("%d milli beside a full department are borrowed: %v, want %v", milli, got, want)
		}
	}
}

// What has started comes before what has not, and of what has the earlier.
func TestGuaranteesGoToWhoWasFirst(t *testing.T) {
	q := org(t)
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	starts := []time.Time{{}, noon, noon.Add(-time.Hour)}
	books := &Ledger{}
	for i, start := range starts {
		books.Book(&Claim{ID: fmt.Sprint(i), Queue: "a", Priority: 50, Start: start, Charge: Charge{Milli: 2000}})
	}
	ranks := NewRanks(q, books)
	ranks.Follow()
	for id, want := range map[string]bool{"0": false, "1": false, "2": true} {
		if got, _ := ranks.Rank(id); got.leaf != want {
			t.Errorf("%s has rank %+v, want the guarantee to go to the one that started first", id, got)
		}
	}
}

func TestWhoYields(t *testing.T) {
	q := org(t)
	own, lent, low := Rank{true, true, 50}, Rank{true, false, 80}, Rank{priority: 10}
	for _, c := range []struct {
		name        string
		work, claim Rank
		of, by      string
		want        bool
	}{
		{"a borrower, whatever its priority", lent, own, "b", "a", true},
		{"not across trees while its tree is within its guarantee", lent, own, "b", "safe", false},
		{"but by priority", Rank{true, false, 40}, own, "b", "safe", true},
		{"a borrower of another tree beyond its guarantee", Rank{priority: 80}, own, "b", "safe", true},
		{"not within a queue", lent, own, "a", "a", false},
		{"but by priority there", Rank{true, false, 40}, own, "a", "a", true},
		{"of equal priority there, not even to who fits the guarantee", Rank{true, false, 50}, own, "a", "a", false},
		{"protected work not to priority", low, Rank{priority: 90}, "safe", "a", false},
		{"but to an owner", low, own, "safe", "a", true},
		{"protected work within its guarantee not to an owner", own, Rank{true, true, 90}, "safe", "a", false},
		{"work within its guarantee of the same tree neither, but by priority", Rank{true, true, 40}, own, "b", "a", true},
		{"protected work to no priority in its queue", Rank{true, false, 10}, own, "safe", "safe", false},
		{"work without a queue to an owner, whatever its priority", Rank{priority: 90}, own, "", "a", true},
		{"nobody to an equal", own, own, "b", "a", false},
		{"nobody to a lower rank", own, lent, "b", "a", false},
		{"work without a queue to priority", low, Rank{priority: 20}, "", "", true},
	} {
		if got := q.Yields(c.work, c.claim, c.of, c.by); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestPathsAndNames(t *testing.T) {
	q := org(t)
	if got := fmt.Sprint(q.Path("a"), q.Path("org"), q.Path("nobody"), q.Names()); got != "[a org] [org] [] [a b guest org safe]" {
		t.Errorf("paths %s", got)
	}
	if q.Queue("b").LimitMemoryMiB != 800 || q.Queue("nobody") != (Queue{}) {
		t.Errorf("queues %+v", q.Queue("b"))
	}
}

// FuzzQuotas: whatever the queues, they are refused or can be asked.
func FuzzQuotas(f *testing.F) {
	f.Add("a", "", int64(1), int64(2), "b", "a", int64(1), int64(0))
	f.Add("a", "b", int64(1), int64(2), "b", "a", int64(1), int64(0))
	f.Fuzz(func(t *testing.T, n1, p1 string, g1, l1 int64, n2, p2 string, g2, l2 int64) {
		q, err := New([]Queue{
			{Name: n1, Parent: p1, GuaranteeMilli: g1, LimitMilli: l1, GuaranteeMemoryMiB: g2},
			{Name: n2, Parent: p2, GuaranteeMilli: g2, LimitMilli: l2, LimitMemoryMiB: l1},
		})
		if err != nil {
			return
		}
		books := &Ledger{}
		one := Charge{Milli: 1, MemoryMiB: 1}
		if d := q.Deficit(books, n1, one); d.Milli < 0 || d.MemoryMiB < 0 || q.Used(books, n1) != (Charge{}) {
			t.Fatalf("queue %q: deficit %+v", n1, d)
		}
		if got := NewRanks(q, books).RankOf(Claim{ID: "r", Queue: n1, Charge: one}); got.leaf && !q.queues[n1].promised() {
			t.Fatalf("queue %q without a guarantee ranks %+v", n1, got)
		}
	})
}

// Without a half-life nothing of the past counts, whatever was stored.
func TestAPastThatDoesNotCountIsEmpty(t *testing.T) {
	stored := map[string]Use{"a": {}}
	if held, at := RestorePast(0, stored, time.Unix(1, 0)).Stored(); len(held) != 0 || !at.IsZero() {
		t.Errorf("it holds %v as of %v", held, at)
	}
	if held, at := RestorePast(time.Hour, stored, time.Unix(1, 0)).Stored(); len(held) != 1 || !at.Equal(time.Unix(1, 0)) {
		t.Errorf("one that counts holds %v as of %v", held, at)
	}
}
