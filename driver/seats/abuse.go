// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"errors"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// What follows bounds what a task's author can do to the others on the device. Each of it can
// happen to a well-meant program now and then; a task that goes on with it is killed.

// ErrInUse means that a task uses more memory than the limit that was to be set.
var ErrInUse = errors.New("the task uses more memory than that")

const (
	// mostStrays is how many times in a row a suspended task may be found with new
	// programs on the device: nothing else is done there while one of them is suspended.
	mostStrays = 8
	// strayPause is how long after the last one they are counted from zero again.
	strayPause = time.Minute
	// stuckPause is the same for a task that could not be locked; it is longer than retryLast.
	stuckPause = 2 * retryLast
	// greedTime is how long a task may use more of the host's memory than its own limit.
	greedTime = 2 * time.Minute
)

// streaks count, by lease, findings about a task several times in a row.
type streaks map[string]streak

type streak struct {
	since, last time.Time
	times       int
}

// note adds to a task's streak, which starts over after a pause.
func (all *streaks) note(leaseID string, now time.Time, pause time.Duration) streak {
	if *all == nil {
		*all = streaks{}
	}
	one := (*all)[leaseID]
	if now.Sub(one.last) > pause {
		one = streak{since: now}
	}
	one.last = now
	one.times++
	(*all)[leaseID] = one
	return one
}

// keep forgets tasks that are gone.
func (all streaks) keep(c *Controller) {
	for id := range all {
		if c.seat(id) == nil {
			delete(all, id)
		}
	}
}

// stray notes that a suspended task has a process on the device that was not suspended.
func (c *Controller) stray(s *gpu.Seat) {
	if c.strays.note(s.LeaseID, c.Now(), strayPause).times > mostStrays {
		c.lose(s, "it starts programs on the GPU again and again while it is suspended")
		return
	}
	c.doubt(s)
}

// cannotBeHeld notes that a task's process could not be locked for another task to come
// back. One that CUDA cannot lock at all, because it is stopped, would keep others away
// for ever.
func (c *Controller) cannotBeHeld(s *gpu.Seat, why string) {
	now := c.Now()
	if s.State != gpu.SeatLost && now.Sub(c.stuck.note(s.LeaseID, now, stuckPause).since) >= giveUp {
		c.lose(s, fmt.Sprintf("its GPU processes could not be held for %s, so that no other task could come back: %s", giveUp, why))
	}
}

// cannotBeRead notes that a task could not come back since CUDA does not tell the state of a
// process: its memory would stay on the host for ever.
func (c *Controller) cannotBeRead(s *gpu.Seat, why string) {
	now := c.Now()
	if s.State != gpu.SeatLost && now.Sub(c.untold.note(s.LeaseID, now, stuckPause).since) >= giveUp {
		c.lose(s, fmt.Sprintf("the state of its GPU processes could not be found out for %s: %s", giveUp, why))
	}
}

// lowerLimit sets the limit of a task's memory for its part on the host, and to its former
// value when nothing is there. One that the kernel refuses, because the task uses more, is
// tried again with each step; a task that goes on using more has taken the memory of others.
func (c *Controller) lowerLimit(s *gpu.Seat) {
	if s.MemoryLimit == 0 || s.Unknown {
		return
	}
	limit := s.MemoryLimit
	switch s.State {
	case gpu.SeatResident:
	case gpu.SeatSuspended:
		most := max(s.MemoryMiB, min(s.MemoryMiB+c.device.Rules.HeadroomMiB, c.hostLeft(s)))
		limit += (most + slackMiB) << 20
	default:
		return
	}
	err := c.Host.SetMemoryLimit(s.LeaseID, limit)
	switch {
	case err == nil && s.State == gpu.SeatResident:
		s.MemoryLimit = 0
		fallthrough
	case err == nil:
		delete(c.greedy, s.LeaseID)
	case errors.Is(err, ErrInUse):
		if now := c.Now(); now.Sub(c.greedy.note(s.LeaseID, now, greedTime).since) >= greedTime {
			c.lose(s, fmt.Sprintf("it uses more than %d MiB of the host's memory: the limit was raised only for its GPU memory, while that is on the host", limit>>20))
		}
	}
}
