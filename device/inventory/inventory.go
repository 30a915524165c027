// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Inventory is what the plugin exposes, or would expose, for people.
type Inventory struct {
	DriverVersion string   `json:"driver_version"`
	CUDAVersion   string   `json:"cuda_version"`
	Simulated     bool     `json:"simulated,omitempty"`
	Devices       []Entry  `json:"devices"`
	Groups        []Group  `json:"groups"`
	Warnings      []string `json:"warnings,omitempty"`
}

// Entry is one GPU or MIG instance.
type Entry struct {
	Index     int         `json:"index"`
	UUID      string      `json:"uuid"`
	Parent    string      `json:"parent,omitempty"`
	Model     string      `json:"model"`
	Profile   string      `json:"profile,omitempty"`
	PCIBusID  string      `json:"pci_bus_id"`
	MemoryMiB int64       `json:"memory_mib"`
	Mode      gpu.Mode    `json:"mode"`
	Sharing   gpu.Sharing `json:"sharing"`
	Grade     gpu.Grade   `json:"grade"`
	Group     string      `json:"group,omitempty"`
	Instances int         `json:"instances"`
	Healthy   int         `json:"healthy"`
	// Guarantees is how many tasks can have a guarantee that the device holds: static
	// partitions have whole chunks, and a device may have fewer chunks than instances.
	Guarantees int         `json:"guarantees,omitempty"`
	Faults     []gpu.Fault `json:"faults,omitempty"`
	Cordon     string      `json:"cordon,omitempty"`
	// Tasks are those of the containerd driver that hold the device now.
	Tasks []string `json:"tasks,omitempty"`
}

// Group is a device group as a job asks for it.
type Group struct {
	Name       string            `json:"name"`
	Instances  int               `json:"instances"`
	Healthy    int               `json:"healthy"`
	Attributes map[string]string `json:"attributes"`
}

// Validate checks a configuration file and, where the hardware can be seen,
// whether its rules select anything. Warnings are worth reading and no mistake.
func Validate(path string) (warnings []string, err error) {
	c, err := config.Read(path)
	if err != nil {
		return nil, err
	}
	inventory, err := Of(c)
	if errors.Is(err, hardware.ErrAbsent) {
		return append(c.Idle, "no GPU driver answers here, so whether the rules select any GPU is not known"), nil
	}
	return inventory.Warnings, err
}

// Take looks at the hardware once and says what a plugin with this
// configuration exposes. It changes nothing. Faults, cordons and tasks are those
// that a running plugin and driver have written down.
func Take(path string) (Inventory, error) {
	c, err := config.Read(path)
	if err != nil {
		return Inventory{}, err
	}
	return Of(c)
}

// Of is Take by a configuration that was read.
func Of(c *config.Config) (Inventory, error) {
	p, err := fleet.Open(hclog.NewNullLogger(), c)
	if err != nil {
		return Inventory{}, err
	}
	defer p.Close()
	seen, err := look(c, p)
	if err != nil {
		return Inventory{}, err
	}
	machine, units := seen.machine, seen.units
	i := Inventory{DriverVersion: machine.Drivers[nvidia.Vendor].Version, CUDAVersion: machine.Drivers[nvidia.Vendor].Platform, Simulated: c.Simulation != nil,
		Warnings: plan.Warnings(c, units, machine, seen.registry)}
	for _, u := range units {
		i.Devices = append(i.Devices, seen.entry(u))
	}
	for _, g := range plan.Groups(plan.TraitsOf(machine, units), units) {
		group := Group{Name: plan.GroupName{Vendor: g.Vendor, Kind: g.Type, Name: g.Name}.String(), Instances: len(g.Devices), Attributes: map[string]string{}}
		for _, d := range g.Devices {
			if d.Healthy {
				group.Healthy++
			}
		}
		for key, value := range g.Attributes {
			group.Attributes[key] = plan.AttributeText(value)
		}
		i.Groups = append(i.Groups, group)
	}
	return i, nil
}

// sight is what one look at a node shows.
type sight struct {
	machine  hardware.Machine
	registry *registry.Registry
	units    []*plan.Unit
	leases   []gpu.Lease    // live
	chunks   map[string]int // of devices with static partitions
}

// look sees the hardware and what a running plugin and driver have written down.
func look(c *config.Config, p *fleet.Platform) (sight, error) {
	machine := p.Observer.Survey()
	if err := nothingSeen(machine); err != nil {
		return sight{}, err
	}
	l, err := registry.Read(c.DataDir)
	if err != nil {
		return sight{}, err
	}
	machine = l.Complete(machine)
	now, leases, r, err := recorded(c, p.BootID)
	if err != nil {
		return sight{}, err
	}
	for _, g := range machine.GPUs {
		if plan.Changing(c, l, g) {
			maps.Copy(now.Busy, occupancy.Users(p.Observer, occupancy.IsMPSServer, g))
		}
	}
	units := plan.Units(c, l, machine, now)
	for _, u := range units {
		u.Cordon = cmp.Or(u.Cordon, r.standing[u.UUID])
	}
	return sight{machine, l, units, leases, r.chunks}, nil
}

// nothingSeen is why a survey has seen nothing at all.
func nothingSeen(machine hardware.Machine) error {
	var why unseen
	for _, vendor := range slices.Sorted(maps.Keys(machine.Drivers)) {
		d := machine.Drivers[vendor]
		if d.Absent == nil {
			return nil
		}
		why = append(why, fmt.Errorf("%s: %w", vendor, d.Err))
	}
	return fmt.Errorf("no GPU driver answers: %w. Install or load the driver, or name a configuration with a simulation block", why)
}

// unseen is why no vendor's devices could be seen.
type unseen []error

func (u unseen) Error() string {
	text := make([]string, len(u))
	for n, err := range u {
		text[n] = err.Error()
	}
	return strings.Join(text, "; ")
}

func (u unseen) Unwrap() []error { return u }

// running is what only the running plugin knows, by UUID: cordons, which tell its wait
// or how many clients there are, and the chunks of static partitions.
type running struct {
	standing map[string]string
	chunks   map[string]int
}

// recorded reads what a running plugin and driver have written down; where they
// have not run there is nothing.
func recorded(c *config.Config, bootID string) (now plan.Inputs, leases []gpu.Lease, r running, err error) {
	now = plan.Inputs{Faults: map[string][]gpu.Fault{}, Busy: map[string]string{}}
	if now.Cordons, err = registry.OpenCordons(c.DataDir).All(); err != nil {
		return now, nil, r, err
	}
	state, err := stateOf(c, bootID)
	if err != nil || state == nil {
		return now, nil, r, err
	}
	r = running{map[string]string{}, map[string]int{}}
	states, err := state.GPUs()
	if err != nil {
		return now, nil, r, err
	}
	for _, s := range states {
		if s.MPS != nil && s.MPS.Partitioning != nil {
			r.chunks[s.UUID] = s.MPS.Partitioning.Chunks
		}
		now.Faults[s.UUID] = s.Faults
		if now.Cordons[s.UUID] == "" && now.Cordons[s.ParentUUID] == "" && s.CordonReason != "" {
			r.standing[s.UUID] = s.CordonReason
		}
	}
	leases, err = enterHeld(&now, c, state)
	return now, leases, r, err
}

// stateOf is the state directory; nil where no plugin has made it, since a command that only
// looks must not.
func stateOf(c *config.Config, bootID string) (*statedir.Dir, error) {
	if _, err := os.Stat(filepath.Join(c.StateDir, "gpus")); err != nil {
		return nil, nil
	}
	return statedir.Open(c.StateDir, bootID)
}

// enterHeld enters what tasks hold, and returns the live leases.
func enterHeld(now *plan.Inputs, c *config.Config, state *statedir.Dir) ([]gpu.Lease, error) {
	leases, err := state.Leases()
	if err != nil {
		return nil, err
	}
	clock := time.Now()
	r, err := occupancy.OpenReservations(c.DataDir, c.ModeChangeDelay, clock)
	if err != nil {
		return nil, err
	}
	r.Match(clock)
	live, recent := r.Held(clock)
	now.Recent = occupancy.Merge(recent, occupancy.Holders(occupancy.LiveAfter(leases, clock.Add(-c.ModeChangeDelay))))
	leases = occupancy.LiveAfter(leases, clock)
	now.Holders = occupancy.Merge(live, occupancy.Holders(leases))
	return leases, nil
}

func (s sight) entry(u *plan.Unit) Entry {
	entry := Entry{Index: u.Index, UUID: u.UUID, Parent: u.Parent, Model: u.GPU.Model, PCIBusID: u.GPU.PCIBusID,
		MemoryMiB: u.MemoryMiB, Mode: u.Sharing.Mode, Sharing: u.Sharing.Mechanism, Grade: u.Grade(),
		Instances: len(u.IDs()), Healthy: u.Healthy(), Faults: u.Faults, Cordon: u.Cordon}
	if chunks := s.chunks[u.UUID]; chunks > 0 {
		entry.Guarantees = min(entry.Instances, chunks)
	}
	if u.Offered() {
		entry.Group = u.Group.String()
	}
	if u.Instance != nil {
		entry.Profile = u.Instance.Profile
	}
	for _, t := range occupancy.On(s.leases, u.UUID) {
		entry.Tasks = append(entry.Tasks, fmt.Sprintf("%s/%s (alloc %.8s)", t.Lease.Job, t.Lease.Task, t.Lease.AllocID))
	}
	return entry
}
