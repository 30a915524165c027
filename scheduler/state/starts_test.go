// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/outlook"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// estimate is a start in one, two or three minutes.
func estimate(s *servicetest.Service) state.Start {
	o := outlook.Outlook{Known: true, Soonest: minutes(1), Likely: minutes(2), Latest: minutes(3)}
	return state.Start{Outlook: o, Estimated: o, At: s.Clock.At, Turn: 2, Of: 5, Held: 3, HeldOf: 4}
}

// held is how many estimates were right, of how many that were compared with a start.
func held(s *servicetest.Service) string {
	c := read(s, func(r *state.Reader) outlook.Calibration { return r.Queue.Calibration() })
	right, of := c.Held()
	return fmt.Sprint(right, " of ", of)
}

// An estimate is told as it was noted last, and the first one of a group is compared with when it
// started: once, unless it was not known, or the group left without a start long ago.
func TestEstimatesAreComparedWithStarts(t *testing.T) {
	for name, row := range map[string]struct {
		notes func(s *servicetest.Service, note func(map[string]state.Start))
		want  string
	}{
		"in time": {func(s *servicetest.Service, note func(map[string]state.Start)) {
			note(map[string]state.Start{"default/one/g": estimate(s)})
			s.Pass(minutes(2))
		}, "1 of 1"},
		"late": {func(s *servicetest.Service, note func(map[string]state.Start)) {
			note(map[string]state.Start{"default/one/g": estimate(s)})
			s.Pass(minutes(4))
		}, "0 of 1"},
		"the first counts": {func(s *servicetest.Service, note func(map[string]state.Start)) {
			note(map[string]state.Start{"default/one/g": estimate(s)})
			s.Pass(minutes(4))
			note(map[string]state.Start{"default/one/g": estimate(s)})
			s.Pass(minutes(2))
		}, "0 of 1"},
		"it was not known": {func(s *servicetest.Service, note func(map[string]state.Start)) {
			note(map[string]state.Start{"default/one/g": {At: s.Clock.At}})
			s.Pass(minutes(2))
		}, "0 of 0"},
		"then it was": {func(s *servicetest.Service, note func(map[string]state.Start)) {
			note(map[string]state.Start{"default/one/g": {At: s.Clock.At}})
			s.Pass(minutes(9))
			note(map[string]state.Start{"default/one/g": estimate(s)})
			s.Pass(minutes(2))
		}, "1 of 1"},
		"of another": {func(s *servicetest.Service, note func(map[string]state.Start)) {
			note(map[string]state.Start{"default/other/g": estimate(s), "default/one/h": estimate(s)})
			s.Pass(minutes(2))
		}, "0 of 0"},
		"Nomad is about to place it": {func(s *servicetest.Service, note func(map[string]state.Start)) {
			note(map[string]state.Start{"default/one/g": estimate(s)})
			s.Pass(minutes(3) + state.Unplaced)
			note(nil)
		}, "0 of 1"},
		"it left": {func(s *servicetest.Service, note func(map[string]state.Start)) {
			note(map[string]state.Start{"default/one/g": estimate(s)})
			s.Pass(minutes(3) + state.Unplaced + 1)
			note(nil)
		}, "0 of 0"},
		"it waits for long": {func(s *servicetest.Service, note func(map[string]state.Start)) {
			note(map[string]state.Start{"default/one/g": estimate(s)})
			s.Pass(time.Hour)
			note(map[string]state.Start{"default/one/g": estimate(s)})
		}, "0 of 1"},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		row.notes(s, func(starts map[string]state.Start) { s.State.Do(func(tx *state.Tx) { tx.NoteStarts(starts) }) })
		for i := range 2 {
			s.Run(servicetest.Ask("one", "1G", 2), fmt.Sprint("alloc-", i), "a", 0, i, 1)
		}
		if got := held(s); got != row.want {
			t.Errorf("%s: %s were right, want %s", name, got, row.want)
		}
	}
}

// What is noted of a group that waits is told of that group alone, and from when it is.
func TestWhatIsToldOfAGroupThatWaits(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	if at := read(s, func(r *state.Reader) time.Time { return r.Queue.StartsNoted() }); !at.IsZero() {
		t.Errorf("starts were estimated at %s", at)
	}
	s.State.Do(func(tx *state.Tx) {
		tx.NoteStarts(map[string]state.Start{"default/one/g": estimate(s)})
		tx.NoteFits(map[string]*view.Fits{"default/one/g": {}}, map[string]state.Lack{"default/one/g": {Text: "near"}})
		tx.NoteFutile(one, "g", true)
		tx.NoteUnmoved(one, "g", "all is needed")
	})
	told := func(key nomad.JobKey, group string) string {
		return read(s, func(r *state.Reader) string {
			t := r.Queue.Told(key, group)
			return fmt.Sprintf("%v %v %v %v %s", t.Start != nil, t.Fits != nil, t.Lack.Text != "", t.Futile, t.Unmoved)
		})
	}
	if got := told(one, "g"); got != "true true true true all is needed" {
		t.Errorf("of the group is told %s", got)
	}
	for _, got := range []string{told(one, "h"), told(other, "g")} {
		if strings.TrimSpace(got) != "false false false false" {
			t.Errorf("of another is told %s", got)
		}
	}
	s.State.View(func(r *state.Reader) {
		start := r.Queue.Told(one, "g").Start
		at := func(n int) time.Time { return s.Clock.At.Add(minutes(n)) }
		if got, want := *start.Shown(), (view.Start{Turn: 2, Of: 5, Known: true, Held: 3, HeldOf: 4, Soonest: at(1), Likely: at(2), Latest: at(3)}); got != want || !r.Queue.StartsNoted().Equal(at(0)) {
			t.Errorf("shown is %+v, want %+v", got, want)
		}
		if got := *(state.Start{Turn: 1, Of: 1, At: at(0)}).Shown(); got != (view.Start{Turn: 1, Of: 1}) {
			t.Errorf("shown of what is not known is %+v", got)
		}
	})
	s.State.Do(func(tx *state.Tx) { tx.NoteFutile(one, "g", false); tx.NoteUnmoved(one, "g", "") })
	if got := told(one, "g"); strings.TrimSpace(got) != "true true true false" {
		t.Errorf("taken back, and told is %s", got)
	}
	s.State.Do(func(tx *state.Tx) {
		tx.NoteFutile(one, "g", true)
		tx.NoteUnmoved(one, "g", "so")
		tx.NoteFutile(other, "g", true)
		tx.NoteUnmoved(other, "g", "so")
	})
	s.State.Apply([]nomad.Change{{Unblocked: &one}}, 99)
	if got, stays := told(one, "g"), told(other, "g"); strings.TrimSpace(got) != "true true true false" || stays != "false false false true so" {
		t.Errorf("it waits no more, and told is %s, and of another %s", got, stays)
	}
}

// How long work will run is what its author says and others like it did; what is promised only, and
// a service without a limit, is not known to end.
func TestHowLongWorkWillRun(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	limited := servicetest.Ask("limited", "1G", 1)
	limited.TimeLimit = 0
	s.Tenant(t, "service", 50, "a", 0, 0, 1)
	s.Register(limited)
	j := s.Job(servicetest.KeyOf(limited))
	j.Groups = slices.Clone(j.Groups)
	j.Index++
	j.Groups[0].TimeLimit = 2 * 60 * 60 * 1e9
	s.State.Apply([]nomad.Change{{Job: &j}}, 99)
	s.Run(limited, "alloc-limited", "a", 0, 1, 1)
	s.Pass(30 * time.Minute)
	s.State.View(func(r *state.Reader) {
		for id, known := range map[string]bool{"alloc-limited": true, "alloc-service": false, "promised": false} {
			left := r.Cluster.Remaining(&place.Usage{ID: id, Takes: []place.Take{{Milli: 62}}})
			if left.Known() != known || known && left.At(0.999) > 90*time.Minute {
				t.Errorf("%s: known %v, for %s", id, left.Known(), left.At(0.999))
			}
		}
	})
}

// A job whose work was moved, or was evicted since it did not use its GPUs, is left alone for an
// hour; a dry run moves nothing.
func TestWhatWasDoneToAJobLately(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	note := func(e view.Event) { s.State.Do(func(tx *state.Tx) { tx.Note(e) }) }
	done := func(key nomad.JobKey) string {
		return read(s, func(r *state.Reader) string { return fmt.Sprint(r.Capacity.Moved(key), r.Capacity.WasIdle(key)) })
	}
	note(view.Event{Kind: "move", Namespace: "default", JobID: "one", DryRun: true})
	note(view.Event{Kind: "idle", Namespace: "default", JobID: "one", DryRun: true})
	note(view.Event{Kind: "hold", Namespace: "default", JobID: "one"})
	if got := done(one); got != "false false" {
		t.Errorf("nothing was done, and told is %s", got)
	}
	note(view.Event{Kind: "move", Namespace: "default", JobID: "one"})
	note(view.Event{Kind: "idle", Namespace: "default", JobID: "other"})
	for _, passed := range []time.Duration{0, time.Hour - 1} {
		s.Pass(passed)
		if got := done(one) + ", " + done(other); got != "true false, false true" {
			t.Errorf("%s later: %s", passed, got)
		}
	}
	s.Pass(time.Second)
	if got := done(one) + ", " + done(other); got != "false false, false false" {
		t.Errorf("after an hour: %s", got)
	}
	take := func() int { return len(readTx(s, func(tx *state.Tx) []view.Event { return tx.Audit.Take() })) }
	if n, again := take(), take(); n != 5 || again != 0 {
		t.Errorf("%d events are handed to the audit log, then %d", n, again)
	}
}

// readTx is what a transaction says.
func readTx[T any](s *servicetest.Service, f func(*state.Tx) T) (out T) {
	s.State.Do(func(tx *state.Tx) { out = f(tx) })
	return out
}

// What was done is stored once, and known to the next leader beside what it did itself; what could
// not be stored is stored later, and errors are not.
func TestWhatWasDoneIsStoredOnce(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	unsaved := func() *record.History {
		return readTx(s, func(tx *state.Tx) *record.History { now, _ := tx.TakeUnsaved(); return now })
	}
	if now := unsaved(); now != nil {
		t.Errorf("nothing was done, and stored is %+v", now)
	}
	s.State.Do(func(tx *state.Tx) {
		tx.Note(view.Event{Kind: "evict", Namespace: "default", JobID: "one", AllocID: "x"})
		tx.Note(view.Event{Kind: "move", Namespace: "default", JobID: "other"})
	})
	s.State.Trouble(fmt.Errorf("it fails"))
	now := unsaved()
	if now == nil || len(now.Events) != 2 || len(now.Evicted["default/one"]) != 1 || unsaved() != nil {
		t.Fatalf("stored is %+v", now)
	}
	s.State.Do(func(tx *state.Tx) { tx.Saved(nil) })
	if again := unsaved(); again == nil || len(again.Events) != 2 {
		t.Errorf("it could not be stored, and then is %+v", again)
	}
	s.State.Do(func(tx *state.Tx) {
		tx.Saved(now)
		tx.Note(view.Event{Kind: "hold", JobID: "one"})
		if _, was := tx.TakeUnsaved(); was != now {
			t.Errorf("stored was %+v", was)
		}
	})

	next := servicetest.After(t, s, time.Minute, "", servicetest.Machine("a", 1))
	next.State.Do(func(tx *state.Tx) {
		tx.Note(view.Event{Kind: "own", JobID: "one"})
		tx.RecallHistory(now)
		tx.RecallHistory(now) // it leads again
	})
	var kinds []string
	for _, e := range read(next, func(r *state.Reader) []view.Event { _, events := r.Queue.Past(); return events }) {
		kinds = append(kinds, e.Kind)
	}
	if !slices.Equal(kinds, []string{"own", "move", "evict"}) || !read(next, func(r *state.Reader) bool { return r.Capacity.Moved(other) }) {
		t.Errorf("the next leader knows of %q", kinds)
	}
}

// What a job is left alone for is not forgotten among what is done to others, however much that
// is, nor by the next leader.
func TestAJobIsLeftAloneHoweverMuchIsDone(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	lately := func(s *servicetest.Service) string {
		return read(s, func(r *state.Reader) string { return fmt.Sprint(r.Capacity.Moved(one), r.Capacity.WasIdle(other)) })
	}
	s.State.Do(func(tx *state.Tx) {
		tx.Note(view.Event{Kind: "move", Namespace: "default", JobID: "one"})
		tx.Note(view.Event{Kind: "idle", Namespace: "default", JobID: "other"})
		for i := range 1000 {
			tx.Note(view.Event{Kind: "hold", Namespace: "default", JobID: fmt.Sprint("j", i)})
		}
	})
	if got := lately(s); got != "true true" {
		t.Errorf("after a thousand events: %s", got)
	}
	stored := readTx(s, func(tx *state.Tx) *record.History { now, _ := tx.TakeUnsaved(); return now })
	next := servicetest.After(t, s, time.Minute, "", servicetest.Machine("a", 1))
	next.State.Do(func(tx *state.Tx) { tx.RecallHistory(stored) })
	if got := lately(next); got != "true true" {
		t.Errorf("the next leader: %s", got)
	}
	next.Pass(time.Hour)
	if got := lately(next); got != "false false" {
		t.Errorf("an hour later: %s", got)
	}
}

// A checkpoint of a job, or of an alloc, says how much of its work an eviction loses.
func TestCheckpointsSayWhatAnEvictionLoses(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	s.Tenant(t, "one", 50, "a", 0, 0, 1)
	begun := s.Clock.At
	s.Pass(time.Hour)
	saved := func() time.Duration {
		u := read(s, func(r *state.Reader) []place.Usage { return r.Capacity.UsagesOn("id-a") })
		if len(u) != 1 {
			t.Fatalf("booked are %+v", u)
		}
		return u[0].WorkSaved
	}
	for _, row := range []struct {
		at   map[nomad.JobKey]time.Time
		want time.Duration
	}{
		{nil, 0}, {map[nomad.JobKey]time.Time{one: begun.Add(minutes(20))}, minutes(20)}, {map[nomad.JobKey]time.Time{one: begun.Add(minutes(30))}, minutes(30)},
		{map[nomad.JobKey]time.Time{other: begun.Add(minutes(40))}, 0}, {map[nomad.JobKey]time.Time{one: begun.Add(-minutes(1))}, 0},
	} {
		s.State.Saved(row.at)
		if got := saved(); got != row.want {
			t.Errorf("with %v %s are saved, want %s", row.at, got, row.want)
		}
	}
	a := s.Alloc("alloc-one")
	a.Index, a.Saved = a.Index+1, map[string]time.Time{"t": begun.Add(minutes(50))}
	s.State.Apply([]nomad.Change{{Alloc: &a}}, 99)
	if got := saved(); got != minutes(50) {
		t.Errorf("its own word: %s", got)
	}
	s.State.Saved(map[nomad.JobKey]time.Time{one: begun.Add(minutes(55))})
	if got := saved(); got != minutes(55) {
		t.Errorf("its job's later word: %s", got)
	}
}
