// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Ranges of starts become those that would have held: where what waits starts three hours
// later than estimated, again and again, the next range reaches that far, and people are told
// how often ranges held.
func TestRangesOfStartsAreCorrected(t *testing.T) {
	s := learned(t, 1)
	runs(t, s, batch("running", "1", 0), "a", 0, 16)
	s.Pass(30 * time.Minute)
	waits := func(i int) state.Start {
		a := batch(fmt.Sprint("waits-", i), "1", 0)
		s.Submit(t, a)
		s.Register(a)
		s.Block(a, 1)
		s.Pass(time.Second)
		all := starts(s)
		s.State.Do(func(tx *state.Tx) { tx.NoteStarts(all) })
		return all["default/"+a.JobID+"/g"]
	}
	first := waits(0)
	if !first.Known || first.Latest > time.Hour || first.Latest != first.Estimated.Latest || first.HeldOf != 0 {
		t.Fatalf("it starts %+v; what runs for 60 to 71 minutes is at its 30th", first)
	}
	for i := range 25 { // somewhere else, three hours later
		key := nomad.JobKey{Namespace: "default", ID: fmt.Sprint("waits-", i)}
		a := batch(key.ID, "1", 0)
		clock := s.Clock.At
		s.Clock.At = clock.Add(3 * time.Hour)
		s.Run(a, "alloc-"+key.ID, "b", 0, 0, 16)
		s.Clock.At = clock
		s.State.Apply([]nomad.Change{{Unblocked: &key}}, s.Index+1)
		s.End("alloc-" + key.ID)
		waits(i + 1)
	}
	next := starts(s)["default/waits-25/g"]
	if next.Latest < 3*time.Hour-time.Minute || next.Latest > 4*time.Hour || next.Estimated.Latest > time.Hour {
		t.Errorf("the next starts %+v", next)
	}
	if text := next.Shown().Text(s.Clock.At); next.HeldOf != 25 || !strings.Contains(text, fmt.Sprintf("(%d of the last 25 such ranges held)", next.Held)) {
		t.Errorf("people read %q", text)
	}
}

// Who leaves without a start says nothing about starts.
func TestOnlyStartsCorrectRanges(t *testing.T) {
	s := learned(t, 1)
	runs(t, s, batch("running", "1", 0), "a", 0, 16)
	a := batch("waits", "1", 0)
	s.Submit(t, a)
	s.Register(a)
	s.Block(a, 1)
	all := starts(s)
	s.State.Do(func(tx *state.Tx) { tx.NoteStarts(all) })
	key := servicetest.KeyOf(a)
	s.State.Apply([]nomad.Change{{JobGone: &key}, {Unblocked: &key}}, s.Index+1)
	s.Pass(24 * time.Hour)
	s.State.Do(func(tx *state.Tx) { tx.NoteStarts(nil) })
	s.Run(a, "alloc-waits", "a", 0, 0, 16) // another of the same name
	s.State.View(func(r *state.Reader) {
		c := r.Queue.Calibration()
		if _, of := c.Held(); of != 0 {
			t.Error("something was learned")
		}
	})
}
