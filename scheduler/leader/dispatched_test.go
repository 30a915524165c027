// SPDX-License-Identifier: MPL-2.0

package leader_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad/nomadtest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// Only who leads reserves, and nothing is kept of what has no room.
func TestWhatIsNotReserved(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	follower := leader.New(s.State, s.Store, func() bool { return false })
	if h, err := follower.Reserve(t.Context(), want(t, "4G"), false); !errors.Is(err, leader.ErrNotLeading) || h.ID != "" {
		t.Errorf("a follower reserves %+v, %v", h, err)
	}
	if h, err := follower.Reserve(t.Context(), want(t, "4G"), true); err != nil || h.NodeName != "a" {
		t.Errorf("a dry run of a follower: %+v, %v", h, err)
	}
	if h, err := s.Reserve(t.Context(), want(t, "17G"), false); err == nil || h.ID != "" || h.NodeName != "" {
		t.Errorf("without room: %+v, %v", h, err)
	}
	if len(s.All()) != 0 || len(s.Store.Items) != 0 {
		t.Errorf("kept are %+v", s.All())
	}
}

// A dry run about a job of which Nomad has not answered yet leaves its decision as it is.
func TestADryRunDropsNoDecision(t *testing.T) {
	s, slow := recordingLate(t, "")
	a := servicetest.Ask("job", "8G", 1)
	d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Decide(t.Context(), []admit.Ask{a}, true); err != nil {
		t.Fatal(err)
	}
	slow.answers <- nil
	s.Settle(t.Context(), []admit.Ask{a}, d, true)
	finished(t, s)
	if !storedOf(t, s, a).Stored() || slow.wrote() != 1 {
		t.Errorf("after %d writes stored is %+v", slow.wrote(), storedOf(t, s, a))
	}
}

// Records that could not be deleted are the next time, and those behind them.
func TestWhatCouldNotBePurgedIsPurgedLater(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	for _, id := range []string{"one", "two"} {
		a := servicetest.Ask(id, "1G", 1)
		s.Submit(t, a)
		s.Register(a)
		s.State.Apply([]nomad.Change{{JobGone: &nomad.JobKey{Namespace: "default", ID: id}}}, 99)
	}
	s.Pass(state.Unseen)
	good := s.Store
	s.UseStore(&nomadtest.Faulty{Store: good, FailAt: 1})
	if err := s.Purge(t.Context()); !errors.Is(err, nomadtest.ErrFaulty) || len(good.Items) != 2 {
		t.Fatalf("%d are stored, %v", len(good.Items), err)
	}
	s.UseStore(good)
	if err := s.Purge(t.Context()); err != nil || len(good.Items) != 0 {
		t.Errorf("%d are stored, %v", len(good.Items), err)
	}
}

// Who waits until all is recorded does not wait for what Nomad refuses.
func TestWhatIsRefusedIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := recordingLate(t, "")
		a := servicetest.Ask("job", "8G", 1)
		d, err := s.Decide(t.Context(), []admit.Ask{a}, false)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- s.Finish(t.Context()) }()
		synctest.Wait()
		if len(done) > 0 {
			t.Error("it did not wait for Nomad's answer")
		}
		s.Settle(t.Context(), []admit.Ask{a}, d, false)
		synctest.Wait()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("it still waits")
		}
	})
}
