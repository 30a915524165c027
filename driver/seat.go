// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// seatPeriod is how often to look whose turn it is, seatPoll how often a start looks
// whether it has a seat.
const (
	seatPeriod = time.Second
	seatPoll   = 250 * time.Millisecond
)

// seatLoop finds the devices with seats, and keeps each apart: moving tasks of one may
// take minutes.
func (d *Driver) seatLoop() {
	for first := true; first || pause(d.ctx, seatPeriod); first = false {
		n, err := d.configured()
		if err != nil {
			continue
		}
		states, _ := n.state.GPUs() // what cannot be read has no seats now
		for _, s := range states {
			if s.Seats == nil {
				continue
			}
			if device, fresh := d.seats.device(s.UUID); fresh {
				d.work.start(func() { d.keepSeats(s.UUID, device) })
			}
		}
	}
}

// keepSeats keeps the seats of one device.
func (d *Driver) keepSeats(uuid string, device *seatDevice) {
	said := ""
	for first := true; first || pause(d.ctx, seatPeriod); first = false {
		n, err := d.configured()
		if err != nil {
			continue
		}
		if err := d.seatStep(n.state, uuid, device); err != nil {
			if text := err.Error(); text != said {
				d.logger.Warn("the seats of a GPU stay as they are", "gpu", uuid, "error", err)
				said = text
			}
			continue
		}
		said = ""
	}
}

func (d *Driver) seatStep(state *statedir.Dir, uuid string, device *seatDevice) error {
	device.mu.Lock()
	defer device.mu.Unlock()
	now, err := d.seatsNow(state, uuid)
	if err != nil {
		return err
	}
	if device.controller == nil {
		left, err := state.Seats(uuid)
		if err != nil && !errors.Is(err, statedir.ErrNotFound) {
			return err
		}
		device.controller = &seats.Controller{UUID: uuid, Host: &seatHost{driver: d, uuid: uuid}, Now: time.Now, Patience: seats.Patience}
		device.controller.Restore(left)
	}
	move, err := device.controller.Step(d.ctx, now)
	if move.Do != seats.Nothing {
		d.logger.Info("seats", "gpu", uuid, "move", move.Do, "task", move.LeaseID, "for", move.For, "reason", move.Reason)
	}
	d.seats.noteHost(device, device.controller.HostMiB())
	return err
}

// seatsNow gathers the state of a device and of the tasks with a seat on it.
func (d *Driver) seatsNow(state *statedir.Dir, uuid string) (seats.Device, error) {
	s, err := state.GPU(uuid)
	if err != nil {
		return seats.Device{}, err
	}
	if s.Seats == nil {
		return seats.Device{}, fmt.Errorf("tasks no longer step aside for each other on GPU %s", uuid)
	}
	leases, err := state.Leases()
	if err != nil {
		return seats.Device{}, err
	}
	usage, err := state.Usage()
	if err != nil && !errors.Is(err, statedir.ErrNotFound) {
		return seats.Device{}, err
	}
	now := seats.Device{HostMiB: d.seats.othersMiB(uuid), Rules: rulesOf(*s.Seats)}
	if at := slices.IndexFunc(usage.Devices, func(u gpu.DeviceUsage) bool { return u.UUID == uuid }); at >= 0 && time.Since(usage.MeasuredAt) < usageMaxAge {
		now.CapacityMiB, now.UsedMiB, now.MeasuredAt = usage.Devices[at].CapacityMiB, usage.Devices[at].UsedMiB, usage.MeasuredAt
	}
	for _, l := range leases {
		at := slices.IndexFunc(l.Holdings, func(h gpu.Holding) bool { return h.UUID == uuid && h.SeatMiB > 0 })
		starting := l.Phase == gpu.PhaseStarting
		if at < 0 || !l.Live() || starting && !d.seats.isReady(l.ID) {
			continue
		}
		task := seatTask(l, l.Holdings[at], usage)
		task.Wish = d.seats.asked(l.ID, true)
		now.Tasks = append(now.Tasks, task)
	}
	return now, nil
}

func seatTask(l gpu.Lease, h gpu.Holding, usage gpu.Usage) seats.Task {
	t := seats.Task{LeaseID: l.ID, StartedAt: l.StartedAt, Starting: l.Phase == gpu.PhaseStarting,
		Priority: h.SeatPriority, DeclaredMiB: h.MemoryMiB}
	for _, u := range usage.Tasks {
		if u.LeaseID == l.ID && u.UUID == h.UUID {
			t.Measured, t.MeasuredMiB, t.Milli = true, u.MemoryMiB, u.Milli
			if u.Processes == 0 {
				t.Milli = max(0, t.Milli) // a task without a program on the device does not use it
			}
		}
	}
	return t
}

// awaitSeat lets a task wait until it has a seat, before its program runs.
func (d *Driver) awaitSeat(ctx context.Context, cfg *drivers.TaskConfig, lease gpu.Lease, dir *statedir.Dir) error {
	for _, h := range lease.Holdings {
		if h.SeatMiB == 0 {
			continue
		}
		d.starts.leave(cfg)
		d.seats.setReady(lease.ID, true)
		for told := false; ; {
			if state, err := dir.GPU(h.UUID); err != nil || state.Seats == nil {
				return &spec.NotReadyError{UUID: h.UUID, Reason: "the device plugin no longer says how its tasks step aside for each other"}
			}
			waits, seated := seatIn(dir, h.UUID, lease)
			if seated {
				break
			}
			if waits != "" && !told {
				told = true
				d.emit(cfg, "GPU "+h.UUID+": "+waits, map[string]string{"gpu": h.UUID, "seat": string(gpu.SeatWaiting)})
			}
			if !pause(ctx, seatPoll) {
				return ctx.Err()
			}
		}
	}
	return nil
}

// seatIn reports whether a start has its seat, and the reason to wait.
func seatIn(state *statedir.Dir, uuid string, lease gpu.Lease) (waits string, seated bool) {
	all, err := state.Seats(uuid)
	if err != nil {
		return "", false
	}
	known, residents := false, 0
	for _, s := range all.Seats {
		if s.LeaseID == lease.ID && s.StartedAt.Equal(lease.StartedAt) {
			known = true
			seated = s.State == gpu.SeatResident
		} else if s.State == gpu.SeatResident {
			residents++
		}
	}
	switch {
	case !known:
		return "", false
	case residents == 0:
		return "waits for a seat", seated
	case residents == 1:
		return "waits for a seat: 1 task is on the GPU now", seated
	}
	return fmt.Sprintf("waits for a seat: %d tasks are on the GPU now", residents), seated
}
