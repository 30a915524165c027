package leader_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/leader"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// What was dispatched and finds no room is waited for until Nomad shows that it waits, and for five
// seconds at most; what finds room counts at once.
func TestHowLongADispatchIsWaitedFor(t *testing.T) {
	for name, row := range map[string]struct {
		held    int           // slices of the only GPU
		blocked time.Duration // when Nomad shows that the child waits; 0: never
		want    time.Duration
	}{
		"there is room":  {15, 0, 0},
		"Nomad shows it": {16, 1010 * time.Millisecond, 1020 * time.Millisecond},
		"it never does":  {16, 0, 5 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1))
			s.Tenant(t, "tenant", 50, "a", 0, 0, row.held)
			begun := time.Now()
			if row.blocked > 0 {
				time.AfterFunc(row.blocked, func() { s.Block(servicetest.Ask("child", "1G", 1), 1) })
			}
			s.Dispatched("default", "child", []admit.Ask{servicetest.Ask("parent", "1G", 1)})
			if took := time.Since(begun); took != row.want {
				t.Errorf("%s: it took %s, want %s", name, took, row.want)
			}
			if promised := len(s.AllAssumed()); promised != map[bool]int{true: 1, false: 0}[row.held < 16] {
				t.Errorf("%s: %d are promised", name, promised)
			}
		})
	}
}

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
