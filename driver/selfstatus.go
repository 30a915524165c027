// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"

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

// seat is where the task is, by the last record; nil where there is none.
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
