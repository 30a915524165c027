// SPDX-License-Identifier: MPL-2.0

package turns

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

func TestGoesFirst(t *testing.T) {
	now := time.Unix(1000, 0)
	order := (*quota.Quotas)(nil).Order(nil, nil)
	turn := func(id string, priority int, waited time.Duration) quota.Turn {
		return quota.Turn{ID: id, Priority: priority, Since: now.Add(-waited)}
	}
	for _, c := range []struct {
		name         string
		waits, other quota.Turn
		first        bool
	}{
		{"a higher priority, at once", turn("a", 70, 0), turn("b", 50, time.Hour), true},
		{"a lower one, never", turn("a", 50, time.Hour), turn("b", 70, 0), false},
		{"the same, after a minute", turn("a", 50, Patience), turn("b", 50, 0), true},
		{"and not before", turn("a", 50, Patience-1), turn("b", 50, 0), false},
		{"nor where the other came earlier", turn("a", 50, Patience), turn("b", 50, time.Hour), false},
	} {
		if got := GoesFirst(order, now, c.waits, c.other); got != c.first {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// Work could start once two of three others have ended, the first two to end.
func TestSoonest(t *testing.T) {
	ends := []Ending{{"c", 30 * time.Second}, {"a", 10 * time.Second}, {"b", 20 * time.Second}}
	if at := Soonest(ends, func(gone map[string]bool) bool { return len(gone) == 2 }); at != 20*time.Second {
		t.Errorf("soonest after %v, want 20s", at)
	}
	var lives forecast.Lifetimes
	if MayBeGone(lives.Remaining(0, 0, "any")) != 0 || EndsBefore(lives.Remaining(0, 0, "any"), time.Hour) {
		t.Error("what is not known to end may be gone at any moment, and ends before nothing")
	}
	for i := range 20 {
		lives.Ended(time.Duration(10+i)*time.Second, "any")
	}
	runs := lives.Remaining(0, 0, "any")
	if at := MayBeGone(runs); at != 11*time.Second {
		t.Errorf("it may be gone after %v, want 11s: one of 20 ended sooner", at)
	}
	if EndsBefore(runs, 28*time.Second) || !EndsBefore(runs, 29*time.Second) {
		t.Error("19 of 20 end within 28 s, want it to count as ended after 29")
	}
}

// Evictions for the own queue count for that queue alone, and all of them for an hour.
func TestEvictions(t *testing.T) {
	now, e := time.Unix(0, 0), NewEvictions[string]()
	e.Note("a", now, true)
	e.Note("a", now.Add(time.Minute), false)
	if e.Left("a", 2, true) || !e.Left("a", 2, false) || e.Left("a", 1, false) || !e.Left("b", 1, true) {
		t.Error("of two evictions one was for the own queue")
	}
	if changed := e.Expire(now.Add(BudgetTime)); !slices.Equal(changed, []string{"a"}) || !e.Left("a", 2, true) || e.Left("a", 1, false) {
		t.Errorf("%v changed after an hour, want a, with one eviction left", changed)
	}
	if changed := e.Expire(now.Add(BudgetTime)); len(changed) != 0 {
		t.Errorf("%v changed again", changed)
	}
}
