// SPDX-License-Identifier: MPL-2.0

package state

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// limited is which jobs have a group that is kept off some nodes for a while, and which have one that
// is held to some: few of all that are recorded.
type limited struct{ off, to map[nomad.JobKey]bool }

func newLimited() limited {
	return limited{map[nomad.JobKey]bool{}, map[nomad.JobKey]bool{}}
}

func (l *limited) note(r *record.Record) {
	l.forget(r.Key())
	for _, g := range r.Groups {
		if len(g.Excluded) > 0 {
			l.off[r.Key()] = true
		}
		if len(g.Only) > 0 {
			l.to[r.Key()] = true
		}
	}
}

func (l *limited) forget(key nomad.JobKey) {
	delete(l.off, key)
	delete(l.to, key)
}
