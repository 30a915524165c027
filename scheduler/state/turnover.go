// SPDX-License-Identifier: MPL-2.0

package state

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// turnover is which allocs with devices came and went since it was taken last. It is kept
// only after [State.FollowTurnover].
type turnover struct {
	wanted bool
	came   map[string]*nomad.Alloc
	went   map[string]*nomad.Alloc
}

func (t *turnover) come(a *nomad.Alloc) {
	if t.wanted && len(a.Devices) > 0 {
		t.came[a.ID] = a
	}
}

// end takes an alloc that has ended, as Nomad says.
func (t *turnover) end(a *nomad.Alloc) {
	if t.wanted && len(a.Devices) > 0 {
		t.went[a.ID] = a
	}
}

// leave takes an alloc that is gone, as it was last: Nomad may not have said that it ended.
func (t *turnover) leave(a *nomad.Alloc, at time.Time) {
	if t.wanted && len(a.Devices) > 0 && t.went[a.ID] == nil {
		last := *a
		last.Ended = at
		t.went[a.ID] = &last
	}
}

// FollowTurnover has [Tx.TakeTurnover] return something from now on.
func (s *State) FollowTurnover() {
	s.Do(func(tx *Tx) {
		tx.turnover = turnover{true, map[string]*nomad.Alloc{}, map[string]*nomad.Alloc{}}
		for a := range tx.Cluster.Allocs() {
			tx.turnover.come(a)
		}
	})
}

// TakeTurnover returns the allocs with devices that came and that went since the last
// call. One whose end Nomad did not tell still [nomad.Alloc.Holds]. Those whose
// GPUs are not listed come when they are.
func (tx *Tx) TakeTurnover() (came, went []*nomad.Alloc) {
	t := &tx.turnover
	for id, a := range t.came {
		if len(tx.Capacity.Holdings(a)) > 0 || tx.Cluster.Alloc(id) == nil {
			came = append(came, a)
			delete(t.came, id)
		}
	}
	for _, a := range t.went {
		went = append(went, a)
	}
	clear(t.went)
	slices.SortFunc(came, byCreation)
	slices.SortFunc(went, byCreation)
	return came, went
}

func byCreation(x, y *nomad.Alloc) int {
	return cmp.Or(x.Created.Compare(y.Created), strings.Compare(x.ID, y.ID))
}
