// SPDX-License-Identifier: MPL-2.0

package state

import (
	"maps"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/outlook"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// starts is when what waits is likely to start, as estimated last.
type starts struct {
	clock  clock
	at     time.Time
	groups map[string]Start
	first  map[string]Start      // the first estimate of each, to be compared with its start
	fits   map[string]*view.Fits // what would start now in place of each
	lacks  map[string]Lack
	past   outlook.Calibration
}

func newStarts(c clock) *starts { return &starts{clock: c, first: map[string]Start{}} }

// Start is when a group that waits is likely to start, and its place among what waits, from 1.
type Start struct {
	outlook.Outlook                 // as it is told
	Estimated       outlook.Outlook // before it was corrected by how far earlier ones were off
	At              time.Time       // of the estimate
	Turn, Of        int
	Held, HeldOf    int // how many of the last estimates held
}

// Shown is the start for people.
func (s Start) Shown() *view.Start {
	out := &view.Start{Turn: s.Turn, Of: s.Of, Known: s.Known, Held: s.Held, HeldOf: s.HeldOf}
	if s.Known {
		out.Soonest, out.Likely, out.Latest = s.At.Add(s.Soonest), s.At.Add(s.Likely), s.At.Add(s.Latest)
	}
	return out
}

// note keeps estimates, by job/group.
func (s *starts) note(groups map[string]Start) {
	s.at, s.groups = s.clock.Now(), groups
	for name, start := range groups {
		if _, known := s.first[name]; !known && start.Known {
			s.first[name] = start
		}
	}
	maps.DeleteFunc(s.first, func(name string, start Start) bool {
		_, waits := groups[name]
		return !waits && s.at.Sub(start.At) > start.Estimated.Latest+Unplaced // it left without a start
	})
}

// Lack is the shortage of a group that waits for room.
type Lack struct {
	Text  string // for people; empty where nothing is known
	Never bool   // no node could hold it even if it was empty
}

// learn compares the first estimate for a group with when an alloc of it was placed.
func (s *starts) learn(a *nomad.Alloc) {
	name := a.Key().String() + "/" + a.Group
	if first, found := s.first[name]; found {
		s.past.Learn(first.Estimated, first.Outlook, a.Created.Sub(first.At))
		delete(s.first, name)
	}
}

// Calibration corrects estimates by how far earlier ones were off, and stays as it is.
func (s *starts) Calibration() outlook.Calibration { return s.past.Clone() }

// StartsNoted is when starts were estimated last; zero: never.
func (s *starts) StartsNoted() time.Time { return s.at }

// NoteStarts keeps estimates for people, by job/group.
func (tx *Tx) NoteStarts(groups map[string]Start) {
	tx.Queue.starts.note(groups)
	tx.version++
}

// NoteFits keeps for people the answers about groups that wait, by job/group: a smaller request
// that would start now, and the shortage.
func (tx *Tx) NoteFits(fits map[string]*view.Fits, lacks map[string]Lack) {
	tx.Queue.starts.fits, tx.Queue.starts.lacks = fits, lacks
	tx.version++
}
