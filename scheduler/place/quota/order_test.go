// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)

// books is a ledger in which queues hold what a test says.
func books(held map[string]Charge) *Ledger {
	l := &Ledger{}
	for queue, charge := range held {
		l.Book(&Claim{ID: queue, Queue: queue, Charge: charge})
	}
	return l
}

func quotas(t *testing.T, queues ...Queue) *Quotas {
	t.Helper()
	q, err := New(queues)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestOrder(t *testing.T) {
	teams := []Queue{
		{Name: "a", GuaranteeMilli: 1000}, {Name: "b", GuaranteeMilli: 4000}, {Name: "m", GuaranteeMemoryMiB: 1000, GuaranteeMilli: 4000}, {Name: "none"}, {Name: "nothing"},
		{Name: "org", GuaranteeMilli: 8000}, {Name: "org-x", Parent: "org", GuaranteeMilli: 1000}, {Name: "org-y", Parent: "org", GuaranteeMilli: 4000},
		{Name: "sum"}, {Name: "sum-x", Parent: "sum", GuaranteeMilli: 1000}, {Name: "0-sum-y", Parent: "sum", GuaranteeMilli: 1000},
	}
	turn := func(id, queue string, priority, minute int) Turn {
		return Turn{ID: id, Queue: queue, Priority: priority, Since: noon.Add(time.Duration(minute) * time.Minute)}
	}
	for name, row := range map[string]struct {
		held  map[string]Charge
		past  map[string]Charge // held in the mean
		waits []Turn
		want  string
	}{
		"priority before all": {map[string]Charge{"a": {Milli: 9000}}, nil, []Turn{turn("poor", "b", 50, 0), turn("urgent", "a", 51, 9)}, "urgent poor"},
		"the smaller part of the guarantee, not the smaller amount": {
			map[string]Charge{"a": {Milli: 500}, "b": {Milli: 1000}}, nil, []Turn{turn("a", "a", 50, 0), turn("b", "b", 50, 9)}, "b a"},
		"the larger of compute and memory counts": {
			map[string]Charge{"a": {Milli: 500}, "m": {Milli: 100, MemoryMiB: 900}}, nil, []Turn{turn("m", "m", 50, 0), turn("a", "a", 50, 9)}, "a m"},
		"over time, where now is equal": {
			nil, map[string]Charge{"a": {Milli: 300}, "b": {Milli: 1000}}, []Turn{turn("a", "a", 50, 0), turn("b", "b", 50, 9)}, "b a"},
		"now before over time": {
			map[string]Charge{"b": {Milli: 100}}, map[string]Charge{"a": {Milli: 900}}, []Turn{turn("b", "b", 50, 0), turn("a", "a", 50, 9)}, "a b"},
		"age, where all is equal":               {nil, nil, []Turn{turn("late", "a", 50, 2), turn("early", "b", 50, 1)}, "early late"},
		"the ID at last":                        {nil, nil, []Turn{turn("y", "a", 50, 1), turn("x", "b", 50, 1)}, "x y"},
		"no guarantee comes last":               {map[string]Charge{"a": {Milli: 9000}}, nil, []Turn{turn("none", "none", 50, 0), turn("a", "a", 50, 9)}, "a none"},
		"and so does no queue":                  {map[string]Charge{"a": {Milli: 9000}}, nil, []Turn{turn("free", "", 50, 0), turn("a", "a", 50, 9)}, "a free"},
		"a queue that is gone is as none":       {map[string]Charge{"a": {Milli: 9000}}, nil, []Turn{turn("left", "gone", 50, 1), turn("free", "", 50, 0), turn("a", "a", 50, 9)}, "a free left"},
		"of two without, the one that has less": {map[string]Charge{"none": {Milli: 2}, "nothing": {Milli: 1}}, nil, []Turn{turn("x", "none", 50, 0), turn("y", "nothing", 50, 9)}, "y x"},
		"roots first": {
			map[string]Charge{"org-y": {Milli: 4000}, "a": {Milli: 600}}, nil, []Turn{turn("a", "a", 50, 0), turn("org-x", "org-x", 50, 8), turn("org-y", "org-y", 50, 9)}, "org-x org-y a"},
		"then those below": {
			map[string]Charge{"org-x": {Milli: 500}, "org-y": {Milli: 1000}}, nil, []Turn{turn("x", "org-x", 50, 0), turn("y", "org-y", 50, 9)}, "y x"},
		"a root without a guarantee stands for those below": {
			map[string]Charge{"sum-x": {Milli: 800}, "a": {Milli: 500}}, nil, []Turn{turn("a", "a", 50, 0), turn("x", "sum-x", 50, 9)}, "x a"},
		"over time counts for those above too": {
			nil, map[string]Charge{"org-y": {Milli: 4000}, "a": {Milli: 100}}, []Turn{turn("x", "org-x", 50, 0), turn("a", "a", 50, 9)}, "a x"},
	} {
		t.Run(name, func(t *testing.T) {
			q := quotas(t, teams...)
			past := NewPast(time.Hour)
			past.Account(q, books(row.past), noon)
			past.Account(q, books(row.past), noon.Add(1000*time.Hour))
			for range 2 {
				slices.SortFunc(row.waits, q.Order(books(row.held), past).Compare)
				var got []string
				for _, w := range row.waits {
					got = append(got, w.ID)
				}
				if strings.Join(got, " ") != row.want {
					t.Errorf("order %v, want %s", got, row.want)
				}
				slices.Reverse(row.waits)
			}
		})
	}
}

// Without queues, and without a past, priority and age are left.
func TestOrderWithoutQueues(t *testing.T) {
	var q *Quotas
	x, y := Turn{ID: "x", Queue: "gone", Since: noon}, Turn{ID: "y", Since: noon.Add(-1)}
	o := q.Order(&Ledger{}, nil)
	if o.Compare(x, y) <= 0 || o.Compare(y, x) >= 0 {
		t.Error("not by age")
	}
	if o.Compare(Turn{Priority: 1, Since: noon}, y) >= 0 {
		t.Error("not by priority")
	}
}

// What was held counts half after each half-life, whenever it is looked at.
func TestPastFades(t *testing.T) {
	q := quotas(t, Queue{Name: "org"}, Queue{Name: "team", Parent: "org"})
	busy, idle := books(map[string]Charge{"team": {Milli: 4000, MemoryMiB: 80}}), books(nil)
	often, seldom := NewPast(time.Hour), NewPast(time.Hour)
	for _, p := range []*Past{often, seldom} {
		p.Account(q, busy, noon)
	}
	for minute := 1; minute <= 60; minute++ {
		often.Account(q, busy, noon.Add(time.Duration(minute)*time.Minute))
	}
	seldom.Account(q, busy, noon.Add(time.Hour))
	for name, p := range map[string]*Past{"often": often, "seldom": seldom} {
		if m := p.Mean(q, "org"); math.Abs(float64(m.Milli)-2000) > 2 || m.MemoryMiB < 39 || m.MemoryMiB > 40 {
			t.Errorf("%s: %v after a half-life of 4 GPUs, want 2", name, m)
		}
		p.Account(q, idle, noon.Add(3*time.Hour))
		if m := p.Mean(q, "team"); math.Abs(float64(m.Milli)-500) > 2 {
			t.Errorf("%s: %v two half-lives later, want 0.5 GPUs", name, m)
		}
		p.Account(q, idle, noon.Add(2*time.Hour)) // the clock went back
		held, at := p.Stored()
		again := RestorePast(time.Hour, held, at)
		if again.Mean(q, "team") != p.Mean(q, "team") || !at.Equal(noon.Add(3*time.Hour)) {
			t.Errorf("%s: %v as of %s after it was stored", name, again.Mean(q, "team"), at)
		}
		p.Account(q, idle, noon.Add(300*time.Hour))
		if held, _ := p.Stored(); len(held) != 0 {
			t.Errorf("%s: %v is remembered for ever", name, held)
		}
	}
}

// With a half-life of 0 nothing is kept, nor taken over.
func TestNoPast(t *testing.T) {
	q := quotas(t, Queue{Name: "team"})
	for _, p := range []*Past{NewPast(0), RestorePast(0, map[string]Use{"team": {MilliSeconds: 1e9}}, noon), {}, nil} {
		if p != nil {
			p.Account(q, books(map[string]Charge{"team": {Milli: 4000}}), noon.Add(time.Hour))
			p.Account(q, books(map[string]Charge{"team": {Milli: 4000}}), noon.Add(2*time.Hour))
		}
		if m := p.Mean(q, "team"); m != (Charge{}) {
			t.Errorf("%v", m)
		}
	}
}

// What a queue held of one kind counts on when it never held of the other.
func TestPastOfOneKindFadesToo(t *testing.T) {
	q := quotas(t, Queue{Name: "team"})
	for _, c := range []struct{ held, want Charge }{
		{Charge{Milli: 4000}, Charge{Milli: 1000}}, {Charge{MemoryMiB: 4000}, Charge{MemoryMiB: 1000}},
	} {
		p := NewPast(time.Hour)
		p.Account(q, books(nil), noon)
		p.Account(q, books(map[string]Charge{"team": c.held}), noon.Add(time.Hour))
		p.Account(q, books(nil), noon.Add(2*time.Hour))
		if got := p.Mean(q, "team"); got != c.want {
			t.Errorf("of %v an hour after it ended: %v, want %v", c.held, got, c.want)
		}
	}
}

// reads counts how often books are asked.
type reads struct {
	*Ledger
	n int
}

func (r *reads) Held(queue string) Charge {
	r.n++
	return r.Ledger.Held(queue)
}

// An order works out what a queue holds once, however many wait.
func TestAnOrderReadsTheBooksOnce(t *testing.T) {
	q := quotas(t, Queue{Name: "a", GuaranteeMilli: 1000}, Queue{Name: "b", GuaranteeMilli: 1000})
	books := &reads{Ledger: books(map[string]Charge{"b": {Milli: 1}})}
	o := q.Order(books, nil)
	for i := range 10 {
		if o.CompareQueues("a", "b") >= 0 || o.CompareQueues("b", "a") <= 0 {
			t.Error("it is the turn of the queue that holds something")
		}
		if books.n != 2 { // each holds for itself alone
			t.Fatalf("the books were asked %d times when the queues had been compared %d times", books.n, i+1)
		}
	}
}

// What is compared of a queue is what it holds, and held, of its guarantee in thousandths,
// from its root down.
func TestSharesOfQueues(t *testing.T) {
	q := quotas(t,
		Queue{Name: "a", GuaranteeMilli: 3000, GuaranteeMemoryMiB: 700}, Queue{Name: "none"},
		Queue{Name: "org"}, Queue{Name: "x", Parent: "org", GuaranteeMilli: 1000}, Queue{Name: "mid", Parent: "org"},
		Queue{Name: "y", Parent: "mid", GuaranteeMilli: 500}, Queue{Name: "z", Parent: "mid", GuaranteeMemoryMiB: 300},
	)
	now := books(map[string]Charge{"a": {1000, 500}, "none": {7, 9}, "x": {500, 100}, "y": {250, 10}, "z": {50, 20}})
	past := RestorePast(time.Hour, map[string]Use{}, noon)
	for name, mean := range map[string]Charge{"a": {2000, 10}, "none": {3, 4}, "y": {1000, 0}} {
		past.held[name] = Use{float64(mean.Milli) * past.life(), float64(mean.MemoryMiB) * past.life()}
	}
	for name, want := range map[string][]int64{
		"a":    {714, 666},
		"none": {unpromised + 7, unpromised + 3},
		"org":  {533, 666},            // of 1.5 GPUs and 300 MiB, those of x, y and z
		"x":    {533, 666, 500, 0},    // memory is not x's to hold
		"mid":  {533, 666, 600, 2000}, // of 0.5 GPUs and 300 MiB
		"y":    {533, 666, 600, 2000, 500, 2000},
		"gone": {unpromised},
	} {
		if got := q.Order(now, past).sharesOf(name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// From the first moment on, and at any half-life, what is held counts; time that does not go
// on, and a half-life that is none, leave all as it was.
func TestWhenUseCounts(t *testing.T) {
	q := quotas(t, Queue{Name: "a"}, Queue{Name: "b"})
	held := books(map[string]Charge{"a": {Milli: 4000}, "b": {MemoryMiB: 50}})
	for _, c := range []struct {
		halfLife, since time.Duration
		want            bool
	}{
		{time.Hour, time.Hour, true}, {time.Hour, 1, true}, {1, time.Hour, true}, {1, 1, true},
		{time.Hour, 0, false}, {time.Hour, -1, false}, {1, 0, false}, {0, time.Hour, false}, {-1, time.Hour, false},
	} {
		t.Run(fmt.Sprint(c.halfLife, c.since), func(t *testing.T) {
			p := NewPast(c.halfLife)
			if p.HalfLife() != c.halfLife {
				t.Errorf("half-life %s", p.HalfLife())
			}
			p.at = noon
			p.Account(q, held, noon.Add(c.since))
			use, at := p.Stored()
			if !c.want {
				if len(use) != 0 || !at.Equal(noon) {
					t.Errorf("%v is held as of %s", use, at)
				}
				return
			}
			if use["a"].MilliSeconds <= 0 || use["b"].MiBSeconds <= 0 || !at.Equal(noon.Add(c.since)) {
				t.Errorf("%v is held as of %s", use, at)
			}
			if c.halfLife == 1 && c.since > 1 && (p.Mean(q, "a") != Charge{Milli: 4000} || p.Mean(q, "b") != Charge{MemoryMiB: 50}) {
				t.Errorf("what was held for long is %v in the mean", p.Mean(q, "a"))
			}
			again, _ := RestorePast(c.halfLife, use, at).Stored()
			if len(again) != len(use) {
				t.Errorf("of %v %v is restored", use, again)
			}
		})
	}
	p := NewPast(time.Hour)
	p.Account(q, held, noon)
	if use, at := p.Stored(); len(use) != 0 || !at.Equal(noon) {
		t.Errorf("at the first look %v is held as of %s", use, at)
	}
}

// Where the shortest goes first, work of four hours is passed by what is shorter for two days, and by
// nothing that comes later than that; work of which nothing is known counts
// as the longest.
func TestShortestFirst(t *testing.T) {
	one := func(id string, came, runs time.Duration) Turn {
		return Turn{ID: id, Since: noon.Add(came), Later: Later(runs)}
	}
	for name, row := range map[string]struct {
		waits []Turn
		want  string
	}{
		"the shorter one, though it came later":  {[]Turn{one("long", 0, 4*time.Hour), one("short", 44*time.Hour, time.Minute)}, "short long"},
		"not when it came later than that":       {[]Turn{one("long", 0, 4*time.Hour), one("short", 48*time.Hour, time.Nanosecond)}, "long short"},
		"of equal length what came first":        {[]Turn{one("second", time.Minute, time.Hour), one("first", 0, time.Hour)}, "first second"},
		"unknown counts as the longest":          {[]Turn{one("unknown", 0, 0), one("long", time.Minute, LongestRun-time.Hour)}, "long unknown"},
		"nothing counts as longer than that":     {[]Turn{one("longer", time.Second, 9*LongestRun), one("unknown", 0, 0)}, "unknown longer"},
		"beside what goes by when it came alone": {[]Turn{one("short", 0, time.Hour), {ID: "plain", Since: noon.Add(23 * time.Hour)}}, "plain short"},
	} {
		t.Run(name, func(t *testing.T) {
			var q *Quotas
			slices.SortFunc(row.waits, q.Order(&Ledger{}, nil).Compare)
			if got := row.waits[0].ID + " " + row.waits[1].ID; got != row.want {
				t.Errorf("order %s, want %s", got, row.want)
			}
		})
	}
	if until := one("long", 0, 4*time.Hour).ShorterUntil(); !until.Equal(noon.Add(48*time.Hour)) || !(Turn{Since: noon}).ShorterUntil().IsZero() {
		t.Errorf("shorter work passes it until %s", until)
	}
}
