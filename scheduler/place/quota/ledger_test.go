// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"slices"
	"testing"
	"time"
)

// At least the latest so many changes are kept, in order, and nothing holds on to those before.
func TestTheLedgerKeepsItsLatestChanges(t *testing.T) {
	l := &Ledger{}
	book := func() { l.Book(&Claim{Queue: "a"}) } // the change at a position has the claim of the next number
	for range 2 * keptChanges {
		book()
	}
	if list, ok := l.since(0); !ok || len(list) != 2*keptChanges || l.end() != 2*keptChanges {
		t.Errorf("%d changes are kept of %d, %v", len(list), l.end(), ok)
	}
	book()
	if _, ok := l.since(keptChanges - 1); ok {
		t.Error("what is gone is read")
	}
	list, ok := l.since(keptChanges)
	if !ok || len(list) != keptChanges+1 || l.end() != 2*keptChanges+1 {
		t.Fatalf("%d changes are kept of %d, %v", len(list), l.end(), ok)
	}
	for i, c := range list {
		if want := int64(keptChanges + i + 1); c.claim.seq != want || c.freed {
			t.Fatalf("change %d is of claim %d (freed: %v), want %d", keptChanges+i, c.claim.seq, c.freed, want)
		}
	}
	if rest := l.changes[len(l.changes):cap(l.changes)]; slices.ContainsFunc(rest, func(c change) bool { return c.claim != nil }) {
		t.Error("claims of changes that are gone are held on to")
	}
	if list, ok := l.since(l.end()); !ok || len(list) != 0 {
		t.Errorf("after the last change are %v, %v", list, ok)
	}
}

// Each booking and each end is a change; what no queue holds is none.
func TestWhatTheLedgerTellsOf(t *testing.T) {
	l := &Ledger{}
	a, b, free := &Claim{ID: "a", Queue: "q"}, &Claim{ID: "b", Queue: "q"}, &Claim{ID: "free"}
	l.Book(a)
	l.Book(free)
	l.Book(b)
	l.Free(a)
	l.Free(a) // not there any more
	l.Free(free)
	again := a.Again("a", "other", 1, time.Time{}, Charge{})
	l.Book(&again)
	list, _ := l.since(0)
	if want := []change{{a, false}, {b, false}, {a, true}, {&again, false}}; !slices.Equal(list, want) {
		t.Errorf("changes %+v, want %+v", list, want)
	}
}

// What has started comes first, by its start; what has not, and what started at once, as booked.
func TestWhoCameEarlier(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	want := []*Claim{
		{ID: "first", Start: start.Add(-1), seq: 4}, {ID: "booked before", Start: start, seq: 2}, {ID: "at once", Start: start, seq: 3},
		{ID: "waits", seq: 1}, {ID: "waits too", seq: 5},
	}
	for i, a := range want {
		for j, b := range want {
			if got := earlier(a, b); max(-1, min(1, i-j)) != got {
				t.Errorf("%q beside %q: %d", a.ID, b.ID, got)
			}
		}
	}
}

// Parts and sums are of both amounts.
func TestChargesOfBothAmounts(t *testing.T) {
	for i, c := range []struct{ got, want Charge }{
		{Charge{900, 10}.Part(1), Charge{900, 10}}, {Charge{900, 10}.Part(2), Charge{450, 5}}, {Charge{900, 10}.Part(20), Charge{45, 1}},
		{Charge{0, 10}.Part(2), Charge{0, 5}}, {Charge{900, 0}.Part(2), Charge{450, 0}}, {Charge{1, 1}.Part(2), Charge{1, 1}},
		{Charge{900, 10}.Times(3), Charge{2700, 30}}, {Charge{900, 10}.Times(0), Charge{}},
		{Charge{900, 10}.Beyond(Charge{1, 1}), Charge{899, 9}}, {Charge{900, 10}.Beyond(Charge{900, 10}), Charge{}}, {Charge{900, 10}.Beyond(Charge{}), Charge{}},
	} {
		if c.got != c.want {
			t.Errorf("case %d: %+v, want %+v", i, c.got, c.want)
		}
	}
	for milli, want := range map[int64]string{0: "0", 1: "0.001", 999: "0.999", 1000: "1", 12_250: "12.25"} {
		if got := GPUs(milli); got != want {
			t.Errorf("%d milli are %q GPUs, want %q", milli, got, want)
		}
	}
}
