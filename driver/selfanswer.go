package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// selfOf answers one task.
type selfOf struct {
	driver *Driver
	task   *task
}

// Mine reports whether a process is in the task's control group: a task that shares the
// process IDs of another could reach its socket.
func (s selfOf) Mine(pid int) error {
	if pid <= 0 {
		return fmt.Errorf("process %d is not the task's: the driver does not see it", pid)
	}
	groups, err := cgroup.Of(pid)
	if err == nil && !cgroup.Within(groups, cgroups.Of(s.task.record.Lease)) {
		err = errors.New("it is not in the task's control group")
	}
	if err != nil {
		return fmt.Errorf("process %d is not the task's: %w", pid, err)
	}
	return nil
}

// Answer answers a request, whose form is valid.
func (s selfOf) Answer(ctx context.Context, r gpu.SelfRequest) gpu.SelfAnswer {
	message, err := s.do(ctx, r)
	if err != nil {
		return gpu.SelfAnswer{Error: err.Error()}
	}
	status, err := s.status()
	if err != nil {
		// What was asked is done all the same.
		return gpu.SelfAnswer{Message: strings.TrimSpace(message + " (the task's status is not known: " + err.Error() + ")")}
	}
	return gpu.SelfAnswer{Message: message, Status: &status}
}

func (s selfOf) do(ctx context.Context, r gpu.SelfRequest) (message string, err error) {
	switch r.Action {
	case gpu.SelfYield:
		return s.wish(seats.WishYield, "the task leaves its GPU within a few seconds, and comes back when it says want, or by itself after a while")
	case gpu.SelfResizeAction:
		return s.resize(ctx, *r.Resize)
	case gpu.SelfSaved:
		return s.task.saved.note(time.Now(), s.driver.savedEvery, s.tellSaved), nil
	case gpu.SelfWant:
		return s.wish(seats.WishWant, "the task comes back to its GPU when its turn comes, or stays on it")
	}
	return "", nil
}

// wish passes yield or want on to the controller of the task's seat.
func (s selfOf) wish(w seats.Wish, message string) (string, error) {
	lease := s.task.record.Lease
	for _, h := range lease.Holdings {
		if h.SeatMiB == 0 {
			return "", fmt.Errorf("action: %q is not valid on GPU %s (it is for GPUs whose tasks step aside for each other, sharing = %q)", w, h.UUID, gpu.SharingSuspend)
		}
	}
	s.driver.seats.ask(lease.ID, w)
	return message, nil
}

// selfView is what the node's state files say, read once a second at most for all tasks
// together: they may ask as often as they like.
type selfView struct {
	mu     sync.Mutex
	at     time.Time
	leases []gpu.Lease
	usage  gpu.Usage
	err    error
}

const selfViewAge = time.Second

// read returns the leases that are live, and what was measured.
func (v *selfView) read(state *statedir.Dir) ([]gpu.Lease, gpu.Usage, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.at) < selfViewAge {
		return v.leases, v.usage, v.err
	}
	leases, err := state.Leases()
	usage, problem := state.Usage()
	if errors.Is(problem, statedir.ErrNotFound) {
		problem = nil
	}
	v.leases = nil
	for _, l := range leases {
		if l.Live() {
			v.leases = append(v.leases, l)
		}
	}
	v.usage, v.err, v.at = usage, errors.Join(err, problem), time.Now()
	if v.err != nil {
		v.err = errors.New("the node's state files cannot be read") // more would tell of others
	}
	return v.leases, v.usage, v.err
}

func (s selfOf) status() (gpu.SelfStatus, error) {
	n, err := s.driver.configured()
	if err != nil {
		return gpu.SelfStatus{}, err
	}
	leases, usage, err := s.driver.selfView.read(n.state)
	if err != nil {
		return gpu.SelfStatus{}, err
	}
	var status gpu.SelfStatus
	for _, h := range s.task.lease().Holdings {
		status.GPUs = append(status.GPUs, s.deviceStatus(n.state, h, leases, usage))
	}
	return status, nil
}

func (s selfOf) deviceStatus(state *statedir.Dir, h gpu.Holding, leases []gpu.Lease, usage gpu.Usage) gpu.SelfGPU {
	g := gpu.SelfGPU{UUID: h.UUID, Mode: h.Mode, Share: h.Share, Neighbors: gpu.SelfNeighbors{Milli: -1}}
	if device, err := state.GPU(h.UUID); err == nil {
		g.Model, g.Sharing, g.DeviceMiB = device.Model, device.Sharing, device.MemoryMiB
		g.Whole = len(h.Slices) == 0 || h.Mode == gpu.ModeSlice && len(h.Slices) == device.Slices
	}
	own := s.task.record.Lease.ID
	neighbors := map[string]bool{}
	for _, l := range leases {
		for _, other := range l.Holdings {
			if l.ID != own && other.UUID == h.UUID {
				neighbors[l.ID] = true
				g.Neighbors.GuaranteeMilli += other.GuaranteeMilli
			}
		}
	}
	g.Neighbors.Tasks = len(neighbors)
	for _, u := range usage.Tasks {
		switch {
		case u.UUID != h.UUID:
		case u.LeaseID == own && !usage.MeasuredAt.Before(s.task.record.StartedAt):
			g.Use = &gpu.SelfUse{MeasuredAt: usage.MeasuredAt, MemoryMiB: u.MemoryMiB, Milli: u.Milli, Processes: u.Processes}
		case neighbors[u.LeaseID]:
			g.Neighbors.MemoryMiB += u.MemoryMiB
			if u.Milli >= 0 {
				g.Neighbors.Milli = max(0, g.Neighbors.Milli) + u.Milli
			}
		}
	}
	if h.SeatMiB > 0 {
		g.Seat = s.seat(state, h.UUID)
	}
	return g
}

// seat is where the task is, by what was written down last; nil where nothing was.
func (s selfOf) seat(state *statedir.Dir, uuid string) *gpu.SelfSeat {
	all, err := state.Seats(uuid)
	device, problem := state.GPU(uuid)
	if err != nil || problem != nil || device.Seats == nil {
		return nil
	}
	own := s.task.record.Lease
	for _, mine := range all.Seats {
		if mine.LeaseID != own.ID {
			continue
		}
		seat := &gpu.SelfSeat{State: mine.State, Since: mine.Since, Priority: mine.Priority, Idle: mine.Idle, Fixed: mine.Fixed,
			Asked: gpu.SelfAction(s.driver.seats.asked(own.ID, false))}
		if mine.Yield && seat.Asked == "" {
			seat.Asked = gpu.SelfYield
		}
		if mine.Away() {
			seat.NextTurn = mine.Since.Add(rulesOf(*device.Seats).MaxWait)
		}
		seat.Waiting, seat.Ahead = seats.Queue(all.Seats, mine)
		return seat
	}
	return nil
}
