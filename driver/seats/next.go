// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Rules are what the operator has decided.
type Rules struct {
	// Idle is how long a resident may leave the device unused while another waits.
	Idle time.Duration
	// SwitchPercent is how much of the time may go into switching between turns.
	SwitchPercent int64
	// MinTurn is the shortest turn, MaxWait how long a task waits before it comes first.
	MinTurn, MaxWait time.Duration
	// HeadroomMiB is the memory that a resident may take beyond its measured memory.
	HeadroomMiB int64
	// HostMiB bounds what all suspended tasks of the node have on the host.
	HostMiB int64
	// RefuseFixed ends tasks that cannot be suspended, instead of leaving them the device.
	RefuseFixed bool
}

// View is one device at a moment.
type View struct {
	// CapacityMiB is the memory that tasks can have on the device, OtherMiB the part taken by
	// others than residents.
	CapacityMiB, OtherMiB int64
	// HostMiB is what suspended tasks of all devices have on the host now.
	HostMiB int64
	Seats   []gpu.Seat
}

// Do is what a move does.
type Do string

const (
	// Nothing is to be done.
	Nothing Do = ""
	// Suspend moves a resident to the host.
	Suspend Do = "suspend"
	// Resume brings a task back, or lets one start.
	Resume Do = "resume"
)

// Move is the next thing to do on a device.
type Move struct {
	Do Do
	// LeaseID is the task that moves, For the one that it makes room for.
	LeaseID, For string
	// Idle says that it leaves because it does not use the device, Overdue that it comes
	// because it has waited so long.
	Idle, Overdue bool
	// Reason says why, for a person.
	Reason string
}

// Turn is how long a turn is that ends by the clock, where switching takes so long.
func (r Rules) Turn(switching time.Duration) time.Duration {
	return max(r.MinTurn, switching*time.Duration(100-r.SwitchPercent)/time.Duration(r.SwitchPercent))
}

// trialAfter is how long after an idle task was suspended it is tried whether it wants
// the device: so long that trials, too, keep to the percentage.
func (r Rules) trialAfter(s gpu.Seat) time.Duration {
	wait := r.Turn(r.Idle + s.Switching())
	for range s.Trials {
		if wait *= 2; wait >= r.MaxWait {
			return r.MaxWait
		}
	}
	return min(wait, r.MaxWait)
}

// need is how much room a task is given on the device. A guess, and the
// headroom, are no more than there can be.
func (v View) need(s gpu.Seat, r Rules, now time.Time) int64 {
	most := max(0, v.CapacityMiB-v.OtherMiB)
	least := max(s.DeclaredMiB, s.MemoryMiB)
	switch first := s.Switches == 0 && (s.State == gpu.SeatWaiting || now.Sub(s.Since) < r.MinTurn); {
	case s.DeclaredMiB > 0:
		return least
	case first:
		return max(least, most) // how much it will take is not known yet
	}
	return max(least, min(s.MemoryMiB+r.HeadroomMiB, most))
}

// room is the memory left beside the residents.
func (v View) room(r Rules, now time.Time) int64 {
	left := v.CapacityMiB - v.OtherMiB
	for _, s := range v.Seats {
		if !s.Away() && s.State != gpu.SeatLost {
			left -= v.need(s, r, now)
		}
	}
	return left
}

// Next is what to do now. The same view gives the same answer; ties go to the seat whose
// lease comes first by its ID.
func Next(v View, r Rules, now time.Time) Move {
	for _, s := range v.Seats {
		if s.Unknown || s.State == gpu.SeatSuspending || s.State == gpu.SeatResuming {
			return Move{} // first it must be known where all are
		}
	}
	if move, found := v.yield(r, now); found {
		return move
	}
	waiting := v.waiting(r, now)
	for n, s := range waiting {
		if v.room(r, now) >= v.need(s, r, now) {
			return Move{Do: Resume, LeaseID: s.LeaseID, Overdue: r.overdue(s, now), Reason: "there is room for it"}
		}
		if n > 0 {
			continue // who is not first comes only where none has to go
		}
		if move, found := v.makeRoom(s, r, now); found {
			return move
		}
	}
	if v.room(r, now) < 0 {
		return v.relieve(r, now)
	}
	return Move{}
}

// yield finds a resident that steps aside by itself.
func (v View) yield(r Rules, now time.Time) (Move, bool) {
	for _, s := range v.Seats {
		if s.State == gpu.SeatResident && s.Yield && !now.Before(s.NotBefore) && v.HostMiB+s.MemoryMiB <= r.HostMiB {
			return Move{Do: Suspend, LeaseID: s.LeaseID, Idle: true, Reason: "it steps aside by itself"}, true
		}
	}
	return Move{}, false
}

// mayCome reports whether a task that is away is to come when its turn is.
func (v View) mayCome(s gpu.Seat, r Rules, now time.Time) bool {
	away := now.Sub(s.Since)
	switch {
	case s.Idle:
		return away >= r.trialAfter(s)
	case s.Yielded:
		return away >= v.returnAfter(s, r)
	}
	return true
}

// returnAfter is how long a task that left by itself stays away at least. Coming back
// holds up its neighbors, so all that do this as fast as they can, together, take no
// more of the time than switching may.
func (v View) returnAfter(s gpu.Seat, r Rules) time.Duration {
	alone, all := true, time.Duration(0)
	for _, other := range v.Seats {
		all += other.Switching()
		alone = alone && (other.LeaseID == s.LeaseID || other.State != gpu.SeatResident)
	}
	if alone {
		return s.Switching()
	}
	return min(r.Turn(all), r.MaxWait)
}

// overdue: it has waited longer than the rules allow.
func (r Rules) overdue(s gpu.Seat, now time.Time) bool {
	return now.Sub(s.Since) >= r.MaxWait || s.Fixed && s.State == gpu.SeatSuspended
}

// waiting are the tasks that are to come, the first first.
func (v View) waiting(r Rules, now time.Time) []gpu.Seat {
	var found []gpu.Seat
	for _, s := range v.Seats {
		if s.Away() && !now.Before(s.NotBefore) && v.mayCome(s, r, now) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b gpu.Seat) int {
		late, later := r.overdue(a, now), r.overdue(b, now)
		if late != later {
			return yesFirst(late)
		}
		if late {
			return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.LeaseID, b.LeaseID))
		}
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Since.Compare(b.Since), cmp.Compare(a.LeaseID, b.LeaseID))
	})
	return found
}

func yesFirst(yes bool) int {
	if yes {
		return -1
	}
	return 1
}

// makeRoom finds the first resident to leave for a task; none where all that may leave
// would not make room enough.
func (v View) makeRoom(next gpu.Seat, r Rules, now time.Time) (Move, bool) {
	leave := map[string]string{}
	var able []gpu.Seat
	for _, s := range v.Seats {
		if reason := v.mayLeave(s, next, r, now); reason != "" {
			leave[s.LeaseID] = reason
			able = append(able, s)
		}
	}
	slices.SortFunc(able, func(a, b gpu.Seat) int {
		if idle, other := r.idle(a, now), r.idle(b, now); idle != other {
			return yesFirst(idle)
		}
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.Since.Compare(b.Since), cmp.Compare(a.LeaseID, b.LeaseID))
	})
	short := v.need(next, r, now) - v.room(r, now)
	for n := range able {
		if short -= v.need(able[n], r, now); short > 0 {
			continue
		}
		able = able[:n+1]
		break
	}
	if short > 0 || len(able) == 0 {
		return Move{}, false
	}
	// A task that was chosen first and turned out not to be needed stays.
	for n := 0; n < len(able) && len(able) > 1; {
		if need := v.need(able[n], r, now); short+need <= 0 {
			short += need
			able = slices.Delete(able, n, n+1)
			continue
		}
		n++
	}
	s := able[0]
	return Move{Do: Suspend, LeaseID: s.LeaseID, For: next.LeaseID, Idle: r.idle(s, now), Reason: leave[s.LeaseID]}, true
}

// mayLeave says why a resident may be suspended for a task; empty if it may not.
func (v View) mayLeave(s, next gpu.Seat, r Rules, now time.Time) string {
	turn := r.Turn(s.Switching() + next.Switching())
	over := now.Sub(s.Since) >= turn
	switch {
	case s.State != gpu.SeatResident || now.Before(s.NotBefore) || v.HostMiB+s.MemoryMiB > r.HostMiB:
		return ""
	case r.idle(s, now):
		return fmt.Sprintf("it has not used the GPU for %s", now.Sub(r.used(s)).Round(time.Second))
	case s.Overdue && !over:
		return "" // it has waited long for this turn
	case r.overdue(next, now):
		return fmt.Sprintf("another task has waited for %s", now.Sub(next.Since).Round(time.Second))
	case next.Priority > s.Priority && !next.Idle:
		return fmt.Sprintf("a task of higher priority wants the GPU (%d, this one has %d)", next.Priority, s.Priority)
	case over && next.Priority >= s.Priority:
		return fmt.Sprintf("its turn of %s is over", turn.Round(time.Second))
	}
	return ""
}

// idle: the device tells, and has seen no use.
func (r Rules) idle(s gpu.Seat, now time.Time) bool {
	return !s.LastUse.IsZero() && now.Sub(r.used(s)) >= r.Idle
}

// used is when a resident last used the device or said that it needs it, or could not
// have before.
func (r Rules) used(s gpu.Seat) time.Time {
	last := s.Since
	for _, at := range []time.Time{s.LastUse, s.WantedAt} {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// relieve finds a resident to leave where those that are there have grown so much that
// their headroom is gone: the one of lowest priority that came last. One stays.
func (v View) relieve(r Rules, now time.Time) Move {
	var able []gpu.Seat
	residents := 0
	for _, s := range v.Seats {
		if s.State != gpu.SeatResident {
			continue
		}
		residents++
		// A task that was not measured yet does not drive out others by its possible memory.
		if !now.Before(s.NotBefore) && s.MemoryMiB > 0 && v.HostMiB+s.MemoryMiB <= r.HostMiB {
			able = append(able, s)
		}
	}
	if residents < 2 || len(able) == 0 {
		return Move{}
	}
	s := slices.MinFunc(able, func(a, b gpu.Seat) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), b.Since.Compare(a.Since), cmp.Compare(a.LeaseID, b.LeaseID))
	})
	return Move{Do: Suspend, LeaseID: s.LeaseID, Idle: r.idle(s, now), Reason: "the tasks on the GPU have grown, and no longer fit beside each other"}
}

// Queue is how many others wait for the device, and how many of them come before a task
// if nothing changes: those of higher priority, and those of the same that wait longer.
func Queue(all []gpu.Seat, mine gpu.Seat) (waiting, ahead int) {
	for _, s := range all {
		if s.LeaseID == mine.LeaseID || !s.Away() || s.Idle {
			continue
		}
		waiting++
		if s.Priority > mine.Priority || s.Priority == mine.Priority && s.Since.Before(mine.Since) {
			ahead++
		}
	}
	if !mine.Away() {
		ahead = 0
	}
	return waiting, ahead
}
