// SPDX-License-Identifier: MPL-2.0

package seats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Host is what a controller acts on. A call that fails says why; one that is cut short
// may have done its work, or a part.
type Host interface {
	// Checkpoint hands a request over to a program that answers within the context.
	Checkpoint(ctx context.Context, r gpu.CheckpointRequest) (gpu.CheckpointAnswer, error)
	// Processes are those of a task, by the host's numbers.
	Processes(leaseID string) ([]int, error)
	// MemoryLimit is that of a task's control group in bytes, 0 without one.
	MemoryLimit(leaseID string) (int64, error)
	// SetMemoryLimit changes it; an ErrInUse where the task has more than that already.
	SetMemoryLimit(leaseID string, bytes int64) error
	// Save writes the seats down: the next process begins with them.
	Save(gpu.Seats) error
	// Lost ends a task that cannot go on; one that came back from the host leaves the device first.
	Lost(leaseID, reason string)
	// Tell tells a task what happens to it.
	Tell(leaseID, message string)
}

// Task is a live lease with a seat, as it is and as it was measured.
type Task struct {
	LeaseID   string
	StartedAt time.Time
	// Starting tasks have no process yet.
	Starting    bool
	Priority    int
	DeclaredMiB int64
	// MeasuredMiB and Milli are its memory and use of the device, Milli -1 where the
	// device does not tell; Measured is false where that is not known.
	Measured    bool
	MeasuredMiB int64
	Milli       int64
	// Wish is what the task has asked for since the last step.
	Wish Wish
}

// Wish is what a task asks for itself.
type Wish string

const (
	// WishYield has a resident leave now; a task that is on the host then does not want to come back.
	WishYield Wish = "yield"
	// WishWant has a task that is on the host wait like those that compute, and counts as a
	// use of the device for a resident.
	WishWant Wish = "want"
)

// Device is the state of the device and its tasks in one step.
type Device struct {
	CapacityMiB int64
	// UsedMiB is what all programs hold of it, measured at MeasuredAt.
	UsedMiB    int64
	MeasuredAt time.Time
	// HostMiB is what suspended tasks of the node's other devices have on the host.
	HostMiB int64
	Tasks   []Task
	Rules   Rules
}

// Controller keeps the seats of one device. Its methods are for one goroutine.
type Controller struct {
	UUID string
	Host Host
	Now  func() time.Time
	// Patience is how long moving so much memory may take.
	Patience func(memoryMiB int64) time.Duration

	seats []gpu.Seat
	// device is the basis of the present step, changed when something last moved: older
	// measurements are not true any more.
	device  Device
	changed time.Time
	// What tasks do to others, by lease: strays were started while their task was
	// suspended, stuck ones could not be held while another came back, greedy ones have more
	// of the host's memory than is theirs, and untold ones could not come back themselves.
	strays, stuck, greedy, untold streaks
}

const (
	// lockTime is how long one process may take to be locked.
	lockTime = 10 * time.Second
	// retryFirst and retryLast are how long after a failure something is tried again, at
	// first and at last; fixedRetry, where a task cannot be suspended as it is.
	retryFirst = 5 * time.Second
	retryLast  = 2 * time.Minute
	fixedRetry = 10 * time.Minute
	// giveUp is how long a task's processes may be in a state that cannot be found out.
	giveUp = 10 * time.Minute
	// slack is what moved memory takes on the host beside itself.
	slackMiB = 64
)

// Patience is the usual one: a move at the slowest rate that was reported, and then some.
func Patience(memoryMiB int64) time.Duration {
	const slowestMiBPerSecond = 256
	return 30*time.Second + time.Duration(memoryMiB)*time.Second/slowestMiBPerSecond
}

// Restore takes up what an earlier process has left. What that was about to do is not
// known to have been done.
func (c *Controller) Restore(left gpu.Seats) {
	c.seats = left.Seats
	for n := range c.seats {
		s := &c.seats[n]
		s.Unknown, s.NotBefore = false, time.Time{} // nothing was tried while no process looked
		c.doubt(s)
	}
}

// Seats are the seats as they are.
func (c *Controller) Seats() []gpu.Seat { return slices.Clone(c.seats) }

// HostMiB is what its suspended tasks have on the host, or may have.
func (c *Controller) HostMiB() int64 { return hostMiB(c.seats) }

func hostMiB(seats []gpu.Seat) int64 {
	sum := int64(0)
	for _, s := range seats {
		if s.State != gpu.SeatResident && s.State != gpu.SeatWaiting {
			sum += s.MemoryMiB
		}
	}
	return sum
}

// Step takes note of the measurements, finds out unknown states, and does the next
// thing. An error says that a step could not be written down, and so was not done.
func (c *Controller) Step(ctx context.Context, d Device) (Move, error) {
	c.device = d
	c.follow(d)
	for n := range c.seats {
		s := &c.seats[n]
		switch {
		case c.Now().Before(s.NotBefore):
		case s.State == gpu.SeatLost:
			c.lose(s, s.Reason) // it is still there
		case s.Unknown:
			if err := c.findOut(ctx, s); err != nil {
				return Move{}, err
			}
		}
	}
	if !d.MeasuredAt.After(c.changed) {
		return Move{}, c.save()
	}
	move := Next(c.view(d), d.Rules, c.Now())
	s := c.seat(move.LeaseID)
	var err error
	switch {
	case move.Do == Suspend:
		err = c.suspend(ctx, s, move)
	case move.Do == Resume && s.State == gpu.SeatWaiting:
		s.Overdue = move.Overdue
		c.arrive(s, gpu.SeatResident)
		c.Host.Tell(s.LeaseID, "has a seat on the GPU, and starts")
	case move.Do == Resume:
		err = c.resume(ctx, s, move)
	}
	return move, errors.Join(err, c.save())
}

func (c *Controller) save() error { return c.Host.Save(gpu.Seats{UUID: c.UUID, Seats: c.seats}) }

func (c *Controller) seat(leaseID string) *gpu.Seat {
	for n := range c.seats {
		if c.seats[n].LeaseID == leaseID {
			return &c.seats[n]
		}
	}
	return nil
}

func (c *Controller) view(d Device) View {
	v := View{CapacityMiB: d.CapacityMiB, HostMiB: d.HostMiB + c.HostMiB(), Seats: c.seats, OtherMiB: d.UsedMiB}
	for _, s := range c.seats {
		if s.State == gpu.SeatResident {
			v.OtherMiB -= s.MemoryMiB
		}
	}
	v.OtherMiB = max(0, v.OtherMiB)
	return v
}

// follow takes note of the tasks that there are, and of their measured use.
func (c *Controller) follow(d Device) {
	c.seats = slices.DeleteFunc(c.seats, func(s gpu.Seat) bool {
		return !slices.ContainsFunc(d.Tasks, func(t Task) bool { return t.LeaseID == s.LeaseID && t.StartedAt.Equal(s.StartedAt) })
	})
	for _, found := range []streaks{c.strays, c.stuck, c.greedy, c.untold} {
		found.keep(c)
	}
	for _, t := range d.Tasks {
		s := c.seat(t.LeaseID)
		if s == nil {
			c.seats = append(c.seats, gpu.Seat{LeaseID: t.LeaseID, StartedAt: t.StartedAt, State: gpu.SeatWaiting, Since: c.Now()})
			if s = c.seat(t.LeaseID); !t.Starting {
				s.State = gpu.SeatResident // a running task without a record
				c.doubt(s)
			}
		}
		s.Priority, s.DeclaredMiB = t.Priority, t.DeclaredMiB
		c.lowerLimit(s) // where the kernel had refused it
		if t.Measured && d.MeasuredAt.After(s.Since) {
			c.measured(s, t, d.MeasuredAt)
		}
		c.wish(s, t.Wish)
	}
	slices.SortFunc(c.seats, func(a, b gpu.Seat) int { return a.Since.Compare(b.Since) })
}

// wish takes note of what a task asks for itself.
func (c *Controller) wish(s *gpu.Seat, w Wish) {
	onHost := s.State == gpu.SeatSuspended || s.State == gpu.SeatSuspending
	switch {
	case w == WishYield && onHost:
		s.Idle = true
	case w == WishYield:
		s.Yield = true
	case w == WishWant && onHost:
		s.Idle, s.Trials = false, 0
	case w == WishWant:
		s.Yield, s.WantedAt = false, c.Now()
	}
}

func (c *Controller) measured(s *gpu.Seat, t Task, at time.Time) {
	switch s.State {
	case gpu.SeatResident:
		if used := t.Milli > 0 || t.MeasuredMiB > s.MemoryMiB; t.Milli >= 0 && (used || s.LastUse.IsZero()) {
			s.LastUse = s.Since
			if used {
				s.LastUse, s.Trials = at, 0
			}
		}
		s.MemoryMiB = t.MeasuredMiB
	case gpu.SeatSuspended:
		if t.MeasuredMiB > 0 && !s.Unknown && !s.Fixed && !c.Now().Before(s.NotBefore) {
			c.stray(s)
		}
	}
}

// doubt notes that it is not known what state a task's processes are in.
func (c *Controller) doubt(s *gpu.Seat) {
	if !s.Unknown && s.State != gpu.SeatWaiting && s.State != gpu.SeatLost {
		s.Unknown, s.UnknownSince = true, c.Now()
	}
}

// arrive notes that a task is where it was to go.
func (c *Controller) arrive(s *gpu.Seat, state gpu.SeatState) {
	c.changed = c.Now()
	if s.State == gpu.SeatWaiting || s.State == gpu.SeatResuming || state == gpu.SeatSuspended {
		s.Yield = false // it is done, or was before this turn
	}
	if s.State != state {
		s.State, s.Since, s.LastUse = state, c.Now(), time.Time{}
	}
	s.Unknown, s.UnknownSince, s.NotBefore, s.Failures = false, time.Time{}, time.Time{}, 0
	if state == gpu.SeatResident {
		s.For, s.Reason, s.Fixed = "", "", false
	}
	c.lowerLimit(s)
}

// failed notes that something did not work, and when it is tried again.
func (c *Controller) failed(s *gpu.Seat, reason string) {
	wait := min(retryFirst<<min(s.Failures, 10), retryLast)
	s.Failures++
	s.Reason, s.NotBefore = reason, c.Now().Add(wait)
	if s.Unknown && c.Now().Sub(s.UnknownSince) >= giveUp {
		c.lose(s, "the state of its GPU processes could not be found out for "+giveUp.String()+": "+reason)
	}
}

func (c *Controller) lose(s *gpu.Seat, reason string) {
	s.State, s.Since, s.Reason, s.Unknown, s.NotBefore = gpu.SeatLost, c.Now(), reason, false, c.Now().Add(retryLast)
	c.Host.Lost(s.LeaseID, reason)
}

// ask hands over a request about a task's processes, within its time.
func (c *Controller) ask(ctx context.Context, s *gpu.Seat, r gpu.CheckpointRequest) (gpu.CheckpointAnswer, error) {
	pids, err := c.Host.Processes(s.LeaseID)
	if err != nil {
		return gpu.CheckpointAnswer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Patience(s.MemoryMiB))
	defer cancel()
	r.Version, r.UUID, r.PIDs, r.LockMS = gpu.StateVersion, c.UUID, pids, lockTime.Milliseconds()
	return c.Host.Checkpoint(ctx, r)
}

// onHost is what a suspended task has on the host already, at most: what else of it goes
// there are processes that have come since, or that could not be suspended with the others.
func onHost(s *gpu.Seat) int64 {
	if s.State != gpu.SeatSuspended {
		return 0
	}
	return s.MemoryMiB
}

// most is how much of a task may go to the host now: its measured memory on the
// device and some headroom, as far as the host's memory goes.
func (c *Controller) most(s *gpu.Seat) int64 {
	held := s.MemoryMiB
	if s.State == gpu.SeatSuspended {
		held = 0
		for _, t := range c.device.Tasks {
			if t.LeaseID == s.LeaseID {
				held = t.MeasuredMiB
			}
		}
	}
	return max(1, min(held+c.device.Rules.HeadroomMiB, c.hostLeft(s)-onHost(s)))
}

// hostLeft is how much of the host's memory other suspended tasks leave to a task.
func (c *Controller) hostLeft(s *gpu.Seat) int64 {
	others := c.device.HostMiB
	for n := range c.seats {
		if c.seats[n].LeaseID != s.LeaseID {
			others += hostMiB(c.seats[n : n+1])
		}
	}
	return c.device.Rules.HostMiB - others
}

// raiseLimit makes room in the task's control group for what will be on the host. The
// former limit is written down first.
func (c *Controller) raiseLimit(s *gpu.Seat) error {
	if s.MemoryLimit == 0 {
		limit, err := c.Host.MemoryLimit(s.LeaseID)
		if err != nil || limit == 0 {
			return err
		}
		s.MemoryLimit = limit
	}
	if err := c.save(); err != nil {
		return err
	}
	return c.Host.SetMemoryLimit(s.LeaseID, s.MemoryLimit+(onHost(s)+c.most(s)+slackMiB)<<20)
}

// move asks for the task's processes to be moved to the host, where none or a part
// is there already.
func (c *Controller) move(ctx context.Context, s *gpu.Seat, whole bool) (gpu.CheckpointAnswer, error) {
	a, err := c.ask(ctx, s, gpu.CheckpointRequest{Action: gpu.CheckpointSuspend, MostMiB: c.most(s)})
	if err == nil && a.Failure == "" {
		if v := c.view(c.device); whole {
			s.MemoryMiB = a.HeldMiB
		} else if s.State == gpu.SeatSuspended {
			// At most: a task whose processes were suspended in parts may count twice. It had
			// room on the device, so it has again. The amount there is never less than before,
			// whatever was measured of the device: its limit follows it.
			s.MemoryMiB = max(a.HeldMiB, s.MemoryMiB, min(s.MemoryMiB+a.HeldMiB, v.CapacityMiB-v.OtherMiB-slackMiB))
		} else {
			s.MemoryMiB = max(s.MemoryMiB, a.HeldMiB)
		}
	}
	return a, err
}

func describe(s *gpu.Seat) string { return fmt.Sprintf("%d MiB of GPU memory", s.MemoryMiB) }
