// SPDX-License-Identifier: MPL-2.0

package record

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

var victim = nomad.JobKey{Namespace: "lab", ID: "low/1"}

func noTrouble(t *testing.T) func(error) {
	return func(err error) { t.Errorf("trouble: %v", err) }
}

func add(t *testing.T, s Store, list ...view.Event) {
	t.Helper()
	if err := AddEvents(t.Context(), s, victim, list, noTrouble(t)); err != nil {
		t.Fatal(err)
	}
}

func happened(i int, text string) view.Event {
	return view.Event{At: time.Date(2026, 1, 1, 0, i, 0, 0, time.Local), Kind: "evict", Namespace: "lab", JobID: "low/1", AllocID: fmt.Sprintf("a%d", i), Text: text}
}

// What was done to a job is there newest first, each thing once, the last 50 of it or as many as
// one Variable holds, and of each job alone.
func TestWhatWasDoneToAJob(t *testing.T) {
	for name, row := range map[string]struct {
		times, kept int
		text        string
	}{
		"once":           {1, 1, "it had to go"},
		"as often":       {keptEvents, keptEvents, "it had to go"},
		"more often":     {keptEvents + 9, keptEvents, "it had to go"},
		"with much text": {keptEvents, 45, strings.Repeat("x", partSize/keptEvents)},
		"with a novel":   {keptEvents, 18, strings.Repeat("x", partSize)},
	} {
		t.Run(name, func(t *testing.T) {
			s := nomadtest.NewStore()
			for i := range row.times {
				add(t, s, happened(i, row.text))
				add(t, s, happened(i, row.text)) // after an answer that was lost
			}
			got, err := Events(t.Context(), s, victim)
			if err != nil || len(got) != row.kept || row.kept > 0 && (got[0].AllocID != fmt.Sprintf("a%d", row.times-1) || !got[0].At.Equal(happened(row.times-1, "").At)) {
				t.Errorf("got %d, %v", len(got), err)
			}
			if other, err := Events(t.Context(), s, nomad.JobKey{Namespace: "lab", ID: "low"}); len(other) != 0 || err != nil {
				t.Errorf("of another job: %v, %v", other, err)
			}
			if len(s.Items) != 1 {
				t.Errorf("%d items", len(s.Items))
			}
		})
	}
}

// A Variable that says nothing to this release keeps no alloc from being stopped: it is told of, and begins anew.
func TestEventsThatCannotBeRead(t *testing.T) {
	for name, text := range map[string]string{"no JSON": "{", "of a later release": `{"v":2,"events":[]}`, "of none": `{"events":[]}`} {
		s := nomadtest.NewStore()
		s.Items[eventsPath(victim)] = nomad.Item{Path: eventsPath(victim), Index: 7, Values: map[string]string{"record": text}}
		if _, err := Events(t.Context(), s, victim); !errors.Is(err, errUnreadable) || !strings.Contains(err.Error(), "lab/low/1") {
			t.Errorf("%s: read %v", name, err)
		}
		if err := ForgetEvents(t.Context(), s, time.Now()); err != nil || len(s.Items) != 1 {
			t.Errorf("%s: forgotten: %v", name, err)
		}
		var trouble error
		if err := AddEvents(t.Context(), s, victim, []view.Event{happened(1, "x")}, func(err error) { trouble = err }); err != nil || trouble == nil {
			t.Errorf("%s: %v, trouble %v", name, err, trouble)
		}
		if got, err := Events(t.Context(), s, victim); len(got) != 1 || err != nil {
			t.Errorf("%s: then %v, %v", name, got, err)
		}
	}
}

// No call to Nomad fails unnoticed, and nothing is lost by one that does.
func TestEventsWhereNomadDoesNotAnswer(t *testing.T) {
	for at := 1; at <= 2; at++ {
		s := nomadtest.NewStore()
		add(t, s, happened(1, "first"))
		if err := AddEvents(t.Context(), &nomadtest.Faulty{Store: s, FailAt: at}, victim, []view.Event{happened(2, "second")}, noTrouble(t)); !errors.Is(err, nomadtest.ErrFaulty) {
			t.Errorf("call %d: added with %v", at, err)
		}
		if got, err := Events(t.Context(), s, victim); len(got) != 1 || err != nil {
			t.Errorf("call %d: left %v, %v", at, got, err)
		}
	}
	for at := 1; at <= 3; at++ {
		s := nomadtest.NewStore()
		add(t, s, happened(1, "first"))
		if err := ForgetEvents(t.Context(), &nomadtest.Faulty{Store: s, FailAt: at}, time.Now()); !errors.Is(err, nomadtest.ErrFaulty) || len(s.Items) != 1 {
			t.Errorf("call %d: forgotten with %v, %d left", at, err, len(s.Items))
		}
	}
}

// What was done to a job is kept as long as something was done to it since.
func TestOldEventsAreForgotten(t *testing.T) {
	s := nomadtest.NewStore()
	add(t, s, happened(1, "first"), happened(5, "second"))
	for minute, left := range map[int]int{1: 1, 5: 1, 6: 0} {
		s := &nomadtest.Store{Items: map[string]nomad.Item{eventsPath(victim): s.Items[eventsPath(victim)]}}
		if err := ForgetEvents(t.Context(), s, happened(minute, "").At); err != nil || len(s.Items) != left {
			t.Errorf("before minute %d: %d left, %v", minute, len(s.Items), err)
		}
	}
}

// Regression: of a job whose ID was long, neither what was decided nor what was done to it could be written, so
// it was never evicted; and what could not be written of one kept all others from being stopped. Nomad
// has no bound for names. What was done to a job for one with such a name drove out what was there.
func TestLongNamesAreNoShield(t *testing.T) {
	for _, length := range []int{1 << 10, 20 << 10, 40 << 10, 70 << 10} {
		for _, of := range []string{"x", "\u00fc", "<", "\x7f"} {
			s, key := nomadtest.NewStore(), nomad.JobKey{Namespace: "lab", ID: strings.Repeat(of, length/len(of))}
			r := New(key)
			if err := r.Write(t.Context(), s); err != nil {
				t.Fatalf("%d of %q: %v", length, of, err)
			}
			if got, err := Read(t.Context(), s, key); err != nil || got.Key() != key {
				t.Errorf("%d of %q: read %v", length, of, err)
			}
			e := view.Event{At: time.Now(), Kind: "evict", Namespace: key.Namespace, JobID: key.ID, AllocID: "a", For: "lab/" + key.ID, Text: key.ID + " must go for " + key.ID}
			for range 2 {
				if err := AddEvents(t.Context(), s, key, []view.Event{e}, noTrouble(t)); err != nil {
					t.Fatalf("%d of %q: %v", length, of, err)
				}
			}
			got, err := Events(t.Context(), s, key)
			if err != nil || len(got) != 1 || got[0].AllocID != "a" || !strings.HasPrefix(got[0].For, "lab/") || !strings.HasPrefix(e.Text, got[0].Text[:100]) {
				t.Errorf("%d of %q: %d events, %v", length, of, len(got), err)
			}
		}
	}
}

// A name is cut at one length wherever people read it, and one that the service admits nowhere: what
// is shown and what is stored are the same event, which is found by the whole name of its job.
func TestNamesAreCutAtOneLength(t *testing.T) {
	namespace := strings.Repeat("n", 128)
	for length, cut := range map[int]bool{admit.LongestName: false, admit.LongestName + 1: true, 70 << 10: true} {
		key, by := nomad.JobKey{Namespace: namespace, ID: strings.Repeat("v", length)}, namespace+"/"+strings.Repeat("b", length)
		text := "evicted " + key.String() + " (priority 20) for " + by + " (priority 70): 8 GiB of A100/0 on gpu-node-1 were needed"
		shown := CutEvent(view.Event{At: time.Now(), Kind: "evict", Namespace: key.Namespace, JobID: key.ID, For: by, Text: text})
		if is := shown.For != by; is != cut || cut && shown.For != namespace+"/"+strings.Repeat("b", admit.LongestName)+"…" {
			t.Errorf("%d: for a name of %d bytes, %t", length, len(shown.For), is)
		}
		if !cut && shown.Text != text {
			t.Errorf("%d: a sentence about names that are admitted was cut to %d bytes", length, len(shown.Text))
		}
		s := nomadtest.NewStore()
		if err := AddEvents(t.Context(), s, key, []view.Event{shown}, noTrouble(t)); err != nil {
			t.Fatal(err)
		}
		if got, err := Events(t.Context(), s, key); err != nil || len(got) != 1 || !got[0].Same(shown) {
			t.Errorf("%d: %d events, or another one is stored than is shown, %v", length, len(got), err)
		}
		if owner := s.Items[eventsPath(key)].Values["job"]; (owner != key.String()) != cut || owner != CutKey(key.String()) {
			t.Errorf("%d: the Variable is of a job with %d bytes", length, len(owner))
		}
	}
}
