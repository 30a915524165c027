// SPDX-License-Identifier: MPL-2.0

package quota

import (
	"strings"
	"testing"
	"time"
)

// What a queue may still hold is the least that it and those above it leave, of each amount for
// itself.
func TestTheTightestLimitCounts(t *testing.T) {
	q, err := New([]Queue{
		{Name: "top", LimitMilli: 8000, LimitMemoryMiB: 100}, {Name: "mid", Parent: "top", LimitMilli: 3000}, {Name: "low", Parent: "mid", LimitMilli: 5000, LimitMemoryMiB: 90},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		held []string
		want Charge
	}{
		{nil, Charge{3000, 90}},
		{[]string{"low 1000 10 50"}, Charge{2000, 80}},
		{[]string{"mid 1000 10 50"}, Charge{2000, 90}},
		{[]string{"mid 1000 11 50"}, Charge{2000, 89}},
		{[]string{"top 6000 100 50"}, Charge{2000, 1}},
		{[]string{"top 5000 0 50"}, Charge{3000, 90}},
		{[]string{"top 5001 0 50"}, Charge{2999, 90}},
		{[]string{"low 2999 89 50"}, Charge{1, 1}},
		{[]string{"low 9000 900 50"}, Charge{1, 1}},
	} {
		books, _ := booked(row.held...)
		if got := q.Left(books, "low"); got != row.want {
			t.Errorf("with %q low may hold %+v, want %+v", row.held, got, row.want)
		}
	}
	if got := q.Left(&Ledger{}, "unknown"); got != (Charge{}) {
		t.Errorf("an unknown queue may hold %+v", got)
	}
}

// A queue below others that are each other's ancestors is refused as they are.
func TestACycleAboveAQueueIsRefused(t *testing.T) {
	_, err := New([]Queue{{Name: "below", Parent: "x"}, {Name: "x", Parent: "y"}, {Name: "y", Parent: "x"}})
	if err == nil || !strings.Contains(err.Error(), `queue "below" is its own ancestor`) || !strings.Contains(err.Error(), `queue "x" is its own ancestor`) {
		t.Errorf("got %v", err)
	}
}

// What was held is remembered as long as either amount of it is worth that.
func TestHowLittleOfThePastCounts(t *testing.T) {
	q, err := New([]Queue{{Name: "q"}})
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Unix(1_800_000_000, 0)
	for _, row := range []struct {
		held Use
		want bool
	}{
		{Use{2 * worth, 0}, true}, {Use{0, 2 * worth}, true}, {Use{2 * worth, 2 * worth}, true}, {Use{2*worth - 1, 2*worth - 1}, false}, {Use{2*worth - 1, 2 * worth}, true},
	} {
		p := RestorePast(time.Hour, map[string]Use{"q": row.held}, begun)
		p.Account(q, &Ledger{}, begun.Add(time.Hour)) // half of it is left
		if held, _ := p.Stored(); len(held) > 0 != row.want {
			t.Errorf("of %+v %+v is remembered", row.held, held)
		}
	}
}
