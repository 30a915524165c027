// SPDX-License-Identifier: MPL-2.0

package state_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
)

// An alloc is known to have been wanted since its group began to wait, through a hold and after
// it, and one that nothing waited for since it was created.
func TestSinceWhenAllocsWereWanted(t *testing.T) {
	a := servicetest.Ask("one", "4G", 1)
	key := servicetest.KeyOf(a)
	for name, row := range map[string]struct {
		does func(s *servicetest.Service)
		want time.Duration // before its creation
	}{
		"it did not wait": {func(s *servicetest.Service) {}, 0},
		"it waits still":  {func(s *servicetest.Service) { s.Block(a, 2); s.Pass(minutes(5)) }, minutes(5)},
		"held, let go and placed": {func(s *servicetest.Service) {
			s.Block(a, 1)
			s.Pass(minutes(5))
			s.State.Apply([]nomad.Change{{Unblocked: &key}}, s.Index)
			s.Pass(time.Second)
		}, minutes(5) + time.Second},
		"held, let go and without room": {func(s *servicetest.Service) {
			s.Block(a, 1)
			s.Pass(minutes(5))
			s.State.Apply([]nomad.Change{{Unblocked: &key}}, s.Index)
			s.Pass(time.Second)
			s.Block(a, 1)
			s.Pass(minutes(5))
		}, minutes(10) + time.Second},
		"that was another time": {func(s *servicetest.Service) {
			s.Block(a, 1)
			s.State.Apply([]nomad.Change{{Unblocked: &key}}, s.Index)
			s.Pass(minutes(30))
		}, 0},
	} {
		s := servicetest.New(t, "", servicetest.Machine("a", 1))
		s.Submit(t, a)
		s.Register(a)
		row.does(s)
		s.Run(a, "alloc", "a", 0, 0, 4)
		s.State.Do(func(tx *state.Tx) { tx.Expire() })
		if got := read(s, func(r *state.Reader) time.Duration {
			return s.Clock.At.Sub(r.Cluster.WantedSince(r.Cluster.Alloc("alloc")))
		}); got != row.want {
			t.Errorf("%s: wanted %s before it was created, want %s", name, got, row.want)
		}
	}
}
