package show_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/show"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
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
