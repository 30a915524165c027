// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// suspend moves a resident to the host, all its processes or none.
func (c *Controller) suspend(ctx context.Context, s *gpu.Seat, m Move) error {
	s.State, s.For, s.Reason, s.Idle, s.Yielded = gpu.SeatSuspending, m.For, m.Reason, m.Idle, s.Yield
	c.doubt(s)
	if err := c.save(); err != nil {
		return err
	}
	if err := c.raiseLimit(s); err != nil {
		c.failed(s, "its memory limit could not be raised: "+err.Error())
		return nil
	}
	begun := c.Now()
	answer, err := c.move(ctx, s, true)
	if err != nil {
		c.failed(s, "it could not be suspended: "+err.Error())
		return nil
	}
	return c.suspended(ctx, s, answer, begun)
}

// suspended takes note of what came of a suspension.
func (c *Controller) suspended(ctx context.Context, s *gpu.Seat, a gpu.CheckpointAnswer, begun time.Time) error {
	away, here := a.Any(gpu.ProcessCheckpointed), a.Any(gpu.ProcessRunning, gpu.ProcessLocked)
	switch {
	case a.Any(gpu.ProcessFailed):
		c.lose(s, "CUDA has lost a process: "+a.Message)
	case a.Failure == "" && !here:
		moved := s.State != gpu.SeatSuspended
		c.arrive(s, gpu.SeatSuspended)
		s.Fixed = false
		if moved {
			c.count(s, &s.OutMS, begun)
			if s.Idle {
				s.Trials++
			} else {
				s.Trials = 0
			}
			c.Host.Tell(s.LeaseID, c.farewell(s))
		}
	case away:
		// A part is on the host: the task is brought back as soon as there is room, or
		// suspended when it is tried again.
		fixed := a.Failure == gpu.FailureUnsupported
		c.arrive(s, gpu.SeatSuspended)
		c.failed(s, "only a part of it could be suspended: "+a.Message)
		s.Fixed = fixed
		if fixed {
			s.NotBefore = time.Time{}
		}
	default:
		return c.stays(ctx, s, a)
	}
	return nil
}

// farewell tells a task that it was suspended: why, for which, and when it comes back.
func (c *Controller) farewell(s *gpu.Seat) string {
	text := fmt.Sprintf("suspended, its %s moved to the host: %s", describe(s), s.Reason)
	if s.For != "" {
		text += ", for " + s.For
	}
	return text + fmt.Sprintf("; it comes back when there is room, and comes before all others from %s on",
		s.Since.Add(c.device.Rules.MaxWait).UTC().Format(time.RFC3339))
}

// stays takes note of a task that could not be suspended at all.
func (c *Controller) stays(ctx context.Context, s *gpu.Seat, a gpu.CheckpointAnswer) error {
	if a.Any(gpu.ProcessLocked) {
		var err error
		if a, err = c.unlock(ctx, s, a); err != nil {
			return nil
		}
	}
	c.keep(s)
	c.failed(s, "it cannot be suspended now: "+a.Message)
	switch {
	case a.Failure != gpu.FailureUnsupported:
	case c.device.Rules.RefuseFixed:
		c.refuse(s, a.Message)
	default:
		s.Fixed, s.NotBefore = true, c.Now().Add(fixedRetry)
		c.Host.Tell(s.LeaseID, "cannot be suspended, and keeps the GPU: "+a.Message)
	}
	return nil
}

// refuse ends a task that cannot be suspended.
func (c *Controller) refuse(s *gpu.Seat, message string) {
	c.lose(s, fmt.Sprintf("it cannot be suspended (%s), and this node's operator refuses such tasks (suspend { unsuspendable = %q })", message, gpu.UnsuspendableRefuse))
}

// keep notes that a task is on the device and has never left: its turn goes on, and so do
// the findings about it.
func (c *Controller) keep(s *gpu.Seat) {
	before := *s
	s.State = gpu.SeatResident
	c.arrive(s, gpu.SeatResident)
	s.Fixed, s.NotBefore, s.Failures = before.Fixed, before.NotBefore, before.Failures
}

// unlock lets processes go on that were left locked. An answer that tells of a failure
// leaves the message of the one before.
func (c *Controller) unlock(ctx context.Context, s *gpu.Seat, before gpu.CheckpointAnswer) (gpu.CheckpointAnswer, error) {
	a, err := c.ask(ctx, s, gpu.CheckpointRequest{Action: gpu.CheckpointUnlock})
	unlocked := len(a.Unread) > 0 && !a.Any(gpu.ProcessLocked, gpu.ProcessCheckpointed, gpu.ProcessFailed)
	if err == nil && a.Failure != "" && !unlocked {
		err = fmt.Errorf("%s", a.Message)
	}
	if err != nil {
		c.doubt(s)
		c.failed(s, "its processes are locked, and could not be unlocked: "+err.Error())
		return before, err
	}
	a.Failure, a.Message = before.Failure, before.Message
	return a, nil
}

// resume brings a task back. Its neighbors are held meanwhile, with what suspended ones
// have started since, so their state is not known either until the program has answered.
func (c *Controller) resume(ctx context.Context, s *gpu.Seat, m Move) error {
	var beside []int
	var neighbors []*gpu.Seat
	whose := map[int]*gpu.Seat{}
	for n := range c.seats {
		other := &c.seats[n]
		if other == s || other.State == gpu.SeatWaiting {
			continue
		}
		pids, err := c.Host.Processes(other.LeaseID)
		if err != nil {
			c.failed(s, "it could not come back: "+err.Error())
			return nil
		}
		beside, neighbors = append(beside, pids...), append(neighbors, other)
		for _, pid := range pids {
			whose[pid] = other
		}
	}
	for _, other := range neighbors {
		c.doubt(other)
	}
	s.State, s.Overdue = gpu.SeatResuming, m.Overdue
	c.doubt(s)
	if err := c.save(); err != nil {
		return err
	}
	begun := c.Now()
	answer, err := c.ask(ctx, s, gpu.CheckpointRequest{Action: gpu.CheckpointResume, Beside: beside, RoomMiB: s.MemoryMiB + slackMiB})
	if err != nil {
		c.failed(s, "it could not be brought back: "+err.Error())
		return nil
	}
	if answer.Failure == "" {
		for _, other := range neighbors {
			other.Unknown, other.UnknownSince = false, time.Time{}
			delete(c.stuck, other.LeaseID)
		}
	}
	for _, pid := range answer.Stuck {
		if other := whose[pid]; other != nil {
			c.cannotBeHeld(other, answer.Message)
		}
	}
	return c.resumed(ctx, s, answer, begun)
}

// resumed takes note of what came of bringing a task back.
func (c *Controller) resumed(ctx context.Context, s *gpu.Seat, a gpu.CheckpointAnswer, begun time.Time) error {
	switch {
	case a.Any(gpu.ProcessFailed):
		c.lose(s, "CUDA has lost a process: "+a.Message)
	case a.Any(gpu.ProcessCheckpointed) && a.Any(gpu.ProcessRunning, gpu.ProcessLocked):
		// Together or not at all: processes that are back go to the host again.
		again, err := c.move(ctx, s, false)
		if err != nil {
			c.failed(s, "only a part of it could be brought back: "+err.Error())
			return nil
		}
		return c.backOnHost(s, again, a.Message)
	case a.Any(gpu.ProcessCheckpointed):
		return c.backOnHost(s, a, a.Message)
	case a.Any(gpu.ProcessLocked):
		if _, err := c.unlock(ctx, s, a); err != nil {
			return nil
		}
		fallthrough
	default:
		c.back(s, begun)
	}
	return nil
}

// back notes that a task is back on the device, and tells it; begun is zero where what brought it
// back gave no answer.
func (c *Controller) back(s *gpu.Seat, begun time.Time) {
	fixed := s.Fixed
	c.arrive(s, gpu.SeatResident)
	if s.Idle, s.Resumed, s.Fixed = false, true, fixed; fixed {
		s.NotBefore = c.Now().Add(fixedRetry)
	}
	c.count(s, &s.InMS, begun)
	if fixed && c.device.Rules.RefuseFixed {
		c.refuse(s, "CUDA could suspend a part of it only")
		return
	}
	told := "back on the GPU with its " + describe(s)
	if !begun.IsZero() {
		told += fmt.Sprintf(", after %s", c.Now().Sub(begun).Round(time.Millisecond))
	}
	c.Host.Tell(s.LeaseID, told)
}

// backOnHost notes that a task is where it was before it was to come back: it keeps its
// place among those that wait.
func (c *Controller) backOnHost(s *gpu.Seat, a gpu.CheckpointAnswer, reason string) error {
	if a.Any(gpu.ProcessFailed) {
		c.lose(s, "CUDA has lost a process: "+a.Message)
		return nil
	}
	failures := s.Failures
	s.State = gpu.SeatSuspended
	c.arrive(s, gpu.SeatSuspended)
	s.Failures = failures
	c.failed(s, "it could not come back: "+reason)
	if len(a.Unread) > 0 {
		c.cannotBeRead(s, reason)
	}
	return nil
}

// count adds a move up; begun is zero where it is not known how long it took.
func (c *Controller) count(s *gpu.Seat, last *int64, begun time.Time) {
	if !begun.IsZero() {
		*last = c.Now().Sub(begun).Milliseconds()
		s.SwitchMS += *last
	}
	s.MovedMiB += s.MemoryMiB
	s.Switches++
}

// findOut looks in what state a task's processes are, and brings them to one that is
// known: all on the device and going on, or all on the host.
func (c *Controller) findOut(ctx context.Context, s *gpu.Seat) error {
	a, err := c.ask(ctx, s, gpu.CheckpointRequest{Action: gpu.CheckpointLook})
	if err == nil && len(a.Unread) > 0 && s.State == gpu.SeatResident && !a.Any(gpu.ProcessCheckpointed, gpu.ProcessFailed) {
		return c.stays(ctx, s, a) // it has not left: like a task that cannot be locked, it keeps the GPU
	}
	if err == nil && a.Failure != "" {
		err = fmt.Errorf("%s", a.Message)
	}
	if err != nil {
		c.failed(s, "what state its processes are in is not known: "+err.Error())
		return nil
	}
	away, here := a.Any(gpu.ProcessCheckpointed), a.Any(gpu.ProcessRunning, gpu.ProcessLocked)
	switch {
	case a.Any(gpu.ProcessFailed):
		c.lose(s, "CUDA has lost a process")
	case away && !here:
		if s.State == gpu.SeatResuming {
			return c.backOnHost(s, a, "what brought it back was cut short")
		}
		return c.suspended(ctx, s, a, time.Time{})
	case away, here && s.State == gpu.SeatSuspended:
		return c.goOn(ctx, s)
	case !here && (s.State == gpu.SeatSuspending || s.State == gpu.SeatSuspended):
		c.arrive(s, gpu.SeatSuspended) // its processes have ended
		s.MemoryMiB = 0
	default:
		if a.Any(gpu.ProcessLocked) {
			if _, err := c.unlock(ctx, s, a); err != nil {
				return nil
			}
		}
		if here && s.State == gpu.SeatResuming {
			c.back(s, time.Time{})
			return nil
		}
		c.arrive(s, gpu.SeatResident)
	}
	return nil
}

// goOn suspends what of a task is not, where a part is: that needs no room on the device.
func (c *Controller) goOn(ctx context.Context, s *gpu.Seat) error {
	if s.State == gpu.SeatResident || s.State == gpu.SeatResuming {
		s.State = gpu.SeatSuspending
	}
	if err := c.raiseLimit(s); err != nil {
		c.failed(s, "its memory limit could not be raised: "+err.Error())
		return nil
	}
	begun := c.Now()
	a, err := c.move(ctx, s, false)
	if err != nil {
		c.failed(s, "it could not be suspended: "+err.Error())
		return nil
	}
	return c.suspended(ctx, s, a, begun)
}
