// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// TestHowOftenARecordIsTried: at once, after 100 ms, then after twice as long each time up to two
// seconds, for twenty seconds.
func TestHowOftenARecordIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, slow := recordingLate(t, "")
		slow.breaks(nomadtest.ErrFaulty)
		s.Submit(t, servicetest.Ask("job", "8G", 1))
		passed := time.Duration(0)
		for _, step := range []struct {
			at   time.Duration
			want int
		}{
			{99 * time.Millisecond, 1}, {100 * time.Millisecond, 2}, {299 * time.Millisecond, 2}, {300 * time.Millisecond, 3}, {699 * time.Millisecond, 3}, {700 * time.Millisecond, 4},
			{3099 * time.Millisecond, 5}, {3100 * time.Millisecond, 6}, {5099 * time.Millisecond, 6}, {5100 * time.Millisecond, 7}, {19100 * time.Millisecond, 14}, {time.Minute, 14},
		} {
			time.Sleep(step.at - passed)
			passed = step.at
			synctest.Wait()
			if got := slow.wrote(); got != step.want {
				t.Errorf("after %s it was tried %d times, want %d", step.at, got, step.want)
			}
		}
	})
}

// What was decided about a job of which Nomad has not answered yet is not new any more: what is
// decided then is recorded before Nomad hears of it, and what was decided first is neither waited for
// nor taken back in its place.
func TestWhatIsDecidedTwiceIsRecordedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, slow := recordingLate(t, "")
		if _, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", "8G", 1)}, false); err != nil || slow.wrote() != 0 {
			t.Fatalf("%d writes, %v", slow.wrote(), err)
		}
		slow.answers <- nil
		changed := servicetest.Ask("job", "4G", 1)
		if _, err := s.Decide(t.Context(), []admit.Ask{changed}, false); err != nil || slow.wrote() != 1 || !storedOf(t, s, changed).Stored() {
			t.Errorf("%d writes, %v", slow.wrote(), err)
		}
		brief, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Finish(brief); err != nil {
			t.Error(err)
		}
		slow.answers <- nil
		s.Settle(t.Context(), []admit.Ask{changed}, nil, false)
		if g := s.Record(servicetest.KeyOf(changed)).Groups["g"]; g.Ask.Tasks[0].Request.String() != "8G" || len(s.AllAssumed()) != 0 {
			t.Errorf("after the refusal counts %+v, and promised is %+v", g.Ask, s.AllAssumed())
		}
	})
}

// What is refused leaves nothing, also where something else was decided meanwhile that could not be
// recorded.
func TestARefusalBesideWhatCannotBeRecordedLeavesNothing(t *testing.T) {
	s, slow := recordingLate(t, "")
	a := servicetest.Ask("job", "8G", 1)
	if _, err := s.Decide(t.Context(), []admit.Ask{a}, false); err != nil {
		t.Fatal(err)
	}
	slow.answers <- nomadtest.ErrFaulty
	if _, err := s.Decide(t.Context(), []admit.Ask{servicetest.Ask("job", "4G", 1)}, false); !errors.Is(err, nomadtest.ErrFaulty) {
		t.Fatal(err)
	}
	s.Settle(t.Context(), []admit.Ask{a}, nil, false)
	if s.Record(servicetest.KeyOf(a)) != nil || len(s.AllAssumed()) != 0 || len(s.Store.Items) != 0 || events(t, s) != "" {
		t.Errorf("left are %+v, %+v: %s", s.Record(servicetest.KeyOf(a)), s.AllAssumed(), events(t, s))
	}
}

// Over what another replica has recorded of the job a replica writes only while it leads, and tells
// of it.
func TestAnothersRecordIsNotWrittenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		leads := true
		d := leader.New(s.State, s.Store, func() bool { return leads })
		d.Late = true
		a := servicetest.Ask("job", "8G", 1)
		answers, err := d.Decide(t.Context(), []admit.Ask{a}, false)
		if err != nil {
			t.Fatal(err)
		}
		others := record.New(servicetest.KeyOf(a))
		if err := others.Write(t.Context(), s.Store); err != nil {
			t.Fatal(err)
		}
		leads = false
		d.Settle(t.Context(), []admit.Ask{a}, answers, true)
		if err := d.Finish(t.Context()); err != nil {
			t.Error(err)
		}
		if !storedOf(t, s, a).SameAs(others) {
			t.Error("another's record was written over")
		}
		if e := s.Cluster(t).Events; len(e) != 1 || e[0].Kind != "error" || !strings.Contains(e[0].Text, "another replica has recorded one") {
			t.Errorf("told is %+v", e)
		}
	})
}
