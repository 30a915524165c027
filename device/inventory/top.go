// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"errors"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Top shows a node's devices as they are now, whether or not a plugin and driver run. It
// changes nothing.
type Top struct {
	config   *config.Config
	platform *fleet.Platform
}

// TopView is what one look shows. Measurements that a device does not report are -1.
type TopView struct {
	At            time.Time   `json:"at"`
	DriverVersion string      `json:"driver_version"`
	CUDAVersion   string      `json:"cuda_version"`
	Simulated     bool        `json:"simulated,omitempty"`
	Devices       []TopDevice `json:"devices"`
}

// TopDevice is a GPU or MIG instance with its readings.
type TopDevice struct {
	Entry
	Tasks         []TopTask `json:"tasks,omitempty"` // in place of their names
	UsedMiB       int64     `json:"used_mib"`
	GPUPercent    int64     `json:"gpu_percent"`
	TemperatureC  int64     `json:"temperature_c"`
	PowerWatts    int64     `json:"power_watts"`
	PowerLimit    int64     `json:"power_limit_watts"`
	MPS           *TopMPS   `json:"mps,omitempty"`
	HeldInstances int       `json:"held_instances"`
}

// TopMPS is a device's MPS daemon, as the running plugin knows it.
type TopMPS struct {
	Ready      bool      `json:"ready"`
	Starts     int64     `json:"starts"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	LastEnd    string    `json:"last_end,omitempty"`
	MaxClients int       `json:"max_clients"`
	Fault      string    `json:"fault,omitempty"`
	// Protocol is the daemon's, and ProtocolReason why it has that one.
	Protocol       int    `json:"protocol,omitempty"`
	ProtocolReason string `json:"protocol_reason,omitempty"`
}

// TopTask is a task of the containerd driver on a device. A use that was not measured is
// -1; the running plugin measures.
type TopTask struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Task      string `json:"task"`
	AllocID   string `json:"alloc_id"`
	// ShareMiB is the memory that it may have, 0 all of it.
	ShareMiB  int64 `json:"share_mib"`
	UsedMiB   int64 `json:"used_mib"`
	Milli     int64 `json:"milli"`
	Processes int   `json:"processes"`
	// Seat is where a task is that steps aside for others, SeatSince since when.
	Seat      gpu.SeatState `json:"seat,omitempty"`
	SeatSince time.Time     `json:"seat_since,omitzero"`
}

// OpenTop gets ready to look, with the configuration at path or the default one.
func OpenTop(path string) (*Top, error) {
	c, err := config.Read(path)
	if err != nil {
		return nil, err
	}
	return TopOf(c)
}

// TopOf is OpenTop by a configuration that was read.
func TopOf(c *config.Config) (*Top, error) {
	p, err := fleet.Open(hclog.NewNullLogger(), c)
	if err != nil {
		return nil, err
	}
	return &Top{config: c, platform: p}, nil
}

// Close lets go of the hardware.
func (t *Top) Close() { t.platform.Close() }

// Look looks once.
func (t *Top) Look() (TopView, error) {
	seen, err := look(t.config, t.platform)
	if err != nil {
		return TopView{}, err
	}
	driver := seen.machine.Drivers[nvidia.Vendor]
	v := TopView{At: time.Now().UTC(), DriverVersion: driver.Version, CUDAVersion: driver.Platform, Simulated: t.config.Simulation != nil}
	state, err := stateOf(t.config, t.platform.BootID)
	if err != nil {
		return TopView{}, err
	}
	usage := gpu.Usage{}
	if state != nil {
		if usage, err = state.Usage(); err != nil && !errors.Is(err, statedir.ErrNotFound) {
			return TopView{}, err
		}
	}
	for _, u := range seen.units {
		d := t.device(u, seen)
		if state != nil {
			d.addState(state, usage)
		}
		v.Devices = append(v.Devices, d)
	}
	return v, nil
}

// device measures a device now, and lists who holds it.
func (t *Top) device(u *plan.Unit, seen sight) TopDevice {
	d := TopDevice{Entry: seen.entry(u), UsedMiB: hardware.Absent, GPUPercent: hardware.Absent,
		TemperatureC: hardware.Absent, PowerWatts: hardware.Absent, PowerLimit: hardware.Absent, HeldInstances: len(u.Held)}
	if u.HeldAll {
		d.HeldInstances = d.Entry.Instances
	}
	if r, err := t.platform.Observer.Reading(u.Owner(), u.UUID); err == nil {
		d.UsedMiB, d.GPUPercent, d.TemperatureC, d.PowerWatts, d.PowerLimit = r.MemoryUsedMiB, r.GPUPercent, r.TemperatureC, r.PowerWatts, r.PowerLimitWatts
	}
	for _, on := range occupancy.On(seen.leases, u.UUID) {
		l := on.Lease
		d.Tasks = append(d.Tasks, TopTask{Namespace: l.Namespace, Job: l.Job, Group: l.Group, Task: l.Task, AllocID: l.AllocID,
			ShareMiB: on.Holding.MostMiB(), UsedMiB: hardware.Absent, Milli: hardware.Absent, Processes: hardware.Absent})
	}
	return d
}

// addState adds what the running plugin and driver know. What cannot be read is left out.
func (d *TopDevice) addState(state *statedir.Dir, usage gpu.Usage) {
	if s, err := state.GPU(d.UUID); err == nil && s.MPS != nil {
		d.MPS = &TopMPS{Ready: s.MPS.Ready, Starts: s.MPS.Generation, StartedAt: s.MPS.StartedAt, LastEnd: s.MPS.LastEnd, MaxClients: s.MPS.MaxClients,
			Protocol: s.MPS.Protocol, ProtocolReason: s.MPS.ProtocolReason}
		if s.MPS.Fault != nil {
			d.MPS.Fault = s.MPS.Fault.String()
		}
	}
	seats, _ := state.Seats(d.UUID) // none without it
	for n := range d.Tasks {
		t := &d.Tasks[n]
		id := gpu.LeaseID(t.AllocID, t.Task)
		if at := slices.IndexFunc(usage.Tasks, func(u gpu.TaskUsage) bool { return u.LeaseID == id && u.UUID == d.UUID }); at >= 0 {
			t.UsedMiB, t.Milli, t.Processes = usage.Tasks[at].MemoryMiB, usage.Tasks[at].Milli, usage.Tasks[at].Processes
		}
		if at := slices.IndexFunc(seats.Seats, func(s gpu.Seat) bool { return s.LeaseID == id }); at >= 0 {
			t.Seat, t.SeatSince = seats.Seats[at].State, seats.Seats[at].Since
		}
	}
}
