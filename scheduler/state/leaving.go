// SPDX-License-Identifier: MPL-2.0

package state

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/ranking"
)

// leaving ranks the nodes that could take an alloc once the work leaves that Leaves
// selects, by how much compute that is.
type leaving struct {
	ranks ranking.Tree // by seat: the less has to go, the higher
	stale []int        // seats that changed since
	used  time.Time
}

// Least is the node, of those that could take an alloc once the work leaves that
// [Reader.Leaves] selects, where the least has to go; of several the one that joined
// first. It leaves out what kept names, and is empty where no node is left.
func (m *Room) Least(priority int, own nomad.JobKey, kept map[string]bool) string {
	l := m.leavingFor(priority, own)
	var tops []int32
	out := map[int]int32{}
	defer func() {
		for at, rank := range out {
			l.ranks.Set(at, rank)
		}
	}()
	for {
		if tops = l.ranks.Top(tops[:0], true); len(tops) == 0 {
			return ""
		}
		if node := m.rooms.books.seats.nodes[tops[0]]; !kept[node] {
			return node
		}
		at := int(tops[0])
		out[at] = l.ranks.Scores()[at]
		l.ranks.Set(at, ranking.Absent)
	}
}

// leavingFor is the ranking for a group that waits, as of now.
func (m *Room) leavingFor(priority int, own nomad.JobKey) *leaving {
	if !m.rooms.allocs.anyAlloc(own) {
		own = nomad.JobKey{}
	}
	key := leaver{priority, own}
	l := m.leaving[key]
	if l == nil {
		l = &leaving{}
		m.leaving[key] = l
	}
	l.used = m.used
	if have := l.ranks.Len(); have < len(m.fits) {
		l.ranks.Grow(len(m.fits) + len(m.fits)/4)
		for at := have; at < len(m.fits); at++ {
			l.stale = append(l.stale, at)
		}
	}
	for _, at := range l.stale {
		l.ranks.Set(at, m.goes(at, priority, own))
	}
	l.stale = l.stale[:0]
	return l
}

// goes ranks a seat: the less has to go there, the higher.
func (m *Room) goes(at, priority int, own nomad.JobKey) int32 {
	sum, leaves := int64(0), Leaves(m.rooms.settings.config, priority, own)
	if !m.rooms.books.ServesNow(m.rooms.books.seats.nodes[at], m.need, func(u *place.Usage) bool {
		if !leaves(u) {
			return false
		}
		sum += max(1, u.Charge().Milli)
		return true
	}) {
		return ranking.Absent
	}
	return int32(-sum)
}
