// SPDX-License-Identifier: MPL-2.0

package show_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/show"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// TestLooksAreTold: whoever measures hears of a look, and no look waits for it.
func TestLooksAreTold(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	looks := make(chan struct{}, 1)
	c := &show.Cache{State: s.State, Leader: func() (string, bool) { return "here", true }, Looks: looks}
	for range 3 {
		v, err := c.View()
		if err != nil || len(v.Nodes) != 1 || v.Leader != "here" || !v.Leading {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	if len(looks) != 1 {
		t.Errorf("%d looks were told of", len(looks))
	}
}

// TestThereIsNoViewOfWhatWasNeverHeard: a page that is empty would be a lie.
func TestThereIsNoViewOfWhatWasNeverHeard(t *testing.T) {
	blind := show.Cache{State: state.New(config.Default(), time.Now), Leader: func() (string, bool) { return "", false }}
	if v, err := blind.View(); !errors.Is(err, state.ErrBlind) {
		t.Errorf("%+v, %v", v, err)
	}
}

// A view is drawn again once half a second has passed, with what is new. One that was handed
// out stays as it is.
func TestAViewIsAtMostHalfASecondOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		leader, outage := "first", (*view.LedgerOutage)(nil)
		c := &show.Cache{State: s.State, Leader: func() (string, bool) { return leader, leader == "second" }, Outage: func() *view.LedgerOutage { return outage }}
		draw := func(after time.Duration) *view.Cluster {
			t.Helper()
			time.Sleep(after) // of the bubble's clock
			v, err := c.View()
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		first := draw(0)
		s.Tenant(t, "tenant", 50, "a", 0, 0, 4)
		leader, outage = "second", &view.LedgerOutage{Waiting: 3}
		if early := draw(499 * time.Millisecond); early != first {
			t.Error("it is drawn again too early")
		}
		second := draw(time.Millisecond)
		if second == first || len(second.Nodes[0].GPUs[0].Holders) != 1 || second.Leader != "second" || !second.Leading || second.Ledger != outage {
			t.Errorf("half a second later: %+v", second)
		}
		if len(first.Nodes[0].GPUs[0].Holders) != 0 || first.Leader != "first" || first.Ledger != nil {
			t.Error("what was handed out has changed")
		}
		if draw(499*time.Millisecond) != second {
			t.Error("it is drawn again too early")
		}
		// Where nothing changed, it is the same but for the time.
		before := second.At
		s.Pass(time.Minute)
		leader = "third"
		third := draw(time.Millisecond)
		if third == second || !third.At.Equal(s.Clock.At) || !third.Synced.Equal(s.Clock.At) || &third.Nodes[0] != &second.Nodes[0] || third.Leader != "third" {
			t.Errorf("nothing changed: %+v", third)
		}
		if !second.At.Equal(before) || second.Leader != "second" {
			t.Error("what was handed out has changed")
		}
	})
}
