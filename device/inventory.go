package device

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
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// Inventory is what the plugin exposes, or would expose, for people.
type Inventory struct {
	DriverVersion string           `json:"driver_version"`
	CUDAVersion   string           `json:"cuda_version"`
	Simulated     bool             `json:"simulated,omitempty"`
	Devices       []InventoryEntry `json:"devices"`
	Groups        []InventoryGroup `json:"groups"`
	Warnings      []string         `json:"warnings,omitempty"`
}

// InventoryEntry is one GPU or MIG instance.
type InventoryEntry struct {
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
	Faults    []gpu.Fault `json:"faults,omitempty"`
	Cordon    string      `json:"cordon,omitempty"`
	// Tasks are those of the containerd driver that hold the device now.
	Tasks []string `json:"tasks,omitempty"`
}

// InventoryGroup is a device group as a job asks for it.
type InventoryGroup struct {
	Name       string            `json:"name"`
	Instances  int               `json:"instances"`
	Healthy    int               `json:"healthy"`
	Attributes map[string]string `json:"attributes"`
}

// ValidateFile checks a configuration file and, where the hardware can be seen,
// whether its rules select anything. Warnings are worth reading and no mistake.
func ValidateFile(path string) (warnings []string, err error) {
	c, err := config.Read(path)
	if err != nil {
		return nil, err
	}
	inventory, err := takeInventory(c)
	if errors.Is(err, hardware.ErrAbsent) {
		return []string{"no GPU driver answers here, so whether the rules select any GPU is not known"}, nil
	}
	return inventory.Warnings, err
}

// TakeInventory looks at the hardware once and says what a plugin with this
// configuration exposes. It changes nothing. Faults, cordons and tasks are those
// that a running plugin and driver have written down.
func TakeInventory(path string) (Inventory, error) {
	c, err := config.Read(path)
	if err != nil {
		return Inventory{}, err
	}
	return takeInventory(c)
}

func takeInventory(c *config.Config) (Inventory, error) {
	p, err := openPlatform(hclog.NewNullLogger(), c)
	if err != nil {
		return Inventory{}, err
	}
	defer p.close()
	seen, err := look(c, p)
	if err != nil {
		return Inventory{}, err
	}
	machine, units, leases := seen.machine, seen.units, seen.leases
	i := Inventory{DriverVersion: machine.Drivers[nvidia.Vendor].Version, CUDAVersion: machine.Drivers[nvidia.Vendor].Platform, Simulated: c.Simulation != nil,
		Warnings: append(unmatched(c, machine.GPUs, seen.registry), crowded(c, units, machine)...)}
	for _, u := range units {
		i.Devices = append(i.Devices, u.inventory(leases))
	}
	for _, g := range buildGroups(traitsOf(machine, units), units) {
		group := InventoryGroup{Name: groupName{g.Vendor, g.Type, g.Name}.String(), Instances: len(g.Devices), Attributes: map[string]string{}}
		for _, d := range g.Devices {
			if d.Healthy {
				group.Healthy++
			}
		}
		for key, value := range g.Attributes {
			group.Attributes[key] = attributeText(value)
		}
		i.Groups = append(i.Groups, group)
	}
	return i, nil
}

// sight is what one look at a node shows.
type sight struct {
	machine  hardware.Machine
	registry *registry.Registry
	units    []*unit
	leases   []gpu.Lease // live
}

// look sees the hardware and what a running plugin and driver have written down.
func look(c *config.Config, p *platform) (sight, error) {
	machine := p.observer.Survey()
	if err := nothingSeen(machine); err != nil {
		return sight{}, err
	}
	l, err := registry.Read(c.DataDir)
	if err != nil {
		return sight{}, err
	}
	machine = l.Complete(machine)
	now, leases, standing, err := recorded(c, p.bootID)
	if err != nil {
		return sight{}, err
	}
	units := plan(c, l, machine, now)
	for _, u := range units {
		u.cordon = cmp.Or(u.cordon, standing[u.uuid])
	}
	return sight{machine, l, units, leases}, nil
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

// recorded reads what a running plugin and driver have written down; where they
// have not run there is nothing. standing are the cordons that only the running
// plugin knows of, by UUID: what it waits for, or how many clients there are.
func recorded(c *config.Config, bootID string) (now planInputs, leases []gpu.Lease, standing map[string]string, err error) {
	now = planInputs{faults: map[string][]gpu.Fault{}, busy: map[string]bool{}}
	if now.cordons, err = registry.OpenCordons(c.DataDir).All(); err != nil {
		return now, nil, nil, err
	}
	state, err := stateOf(c, bootID)
	if err != nil || state == nil {
		return now, nil, nil, err
	}
	standing = map[string]string{}
	states, err := state.GPUs()
	if err != nil {
		return now, nil, nil, err
	}
	for _, s := range states {
		now.faults[s.UUID] = s.Faults
		if now.cordons[s.UUID] == "" && now.cordons[s.ParentUUID] == "" && s.CordonReason != "" {
			standing[s.UUID], now.busy[s.UUID] = s.CordonReason, true
		}
	}
	leases, err = now.held(c, state)
	return now, leases, standing, err
}

// stateOf is the state directory; nil where no plugin has made it, since a command that only
// looks must not.
func stateOf(c *config.Config, bootID string) (*statedir.Dir, error) {
	if _, err := os.Stat(filepath.Join(c.StateDir, "gpus")); err != nil {
		return nil, nil
	}
	return statedir.Open(c.StateDir, bootID)
}

// held enters what tasks hold, and returns the live leases.
func (now *planInputs) held(c *config.Config, state *statedir.Dir) ([]gpu.Lease, error) {
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
	now.recent = occupancy.Merge(recent, occupancy.Holders(occupancy.LiveAfter(leases, clock.Add(-c.ModeChangeDelay))))
	leases = occupancy.LiveAfter(leases, clock)
	now.holders = occupancy.Merge(live, occupancy.Holders(leases))
	return leases, nil
}

func (u *unit) inventory(leases []gpu.Lease) InventoryEntry {
	entry := InventoryEntry{Index: u.index, UUID: u.uuid, Parent: u.parent, Model: u.gpu.Model, PCIBusID: u.gpu.PCIBusID,
		MemoryMiB: u.memoryMiB, Mode: u.sharing.Mode, Sharing: u.sharing.Mechanism, Grade: u.grade(),
		Instances: len(u.ids()), Healthy: u.healthy(), Faults: u.faults, Cordon: u.cordon}
	if u.offered() {
		entry.Group = u.group.String()
	}
	if u.instance != nil {
		entry.Profile = u.instance.Profile
	}
	for _, t := range occupancy.On(leases, u.uuid) {
		entry.Tasks = append(entry.Tasks, fmt.Sprintf("%s/%s (alloc %.8s)", t.Lease.Job, t.Lease.Task, t.Lease.AllocID))
	}
	return entry
}

// crowded warns of devices with more instances than their MPS server takes clients, and of
// those whose server takes fewer than mps.max_clients.
func crowded(c *config.Config, units []*unit, machine hardware.Machine) []string {
	var warnings []string
	for _, u := range units {
		cuda := machine.Drivers[u.gpu.Vendor].Platform
		most := clientsOf(c, u, cuda)
		if can := maxClients(u.gpu.ComputeCapability, cuda); u.needsDaemon() && most > can {
			warnings = append(warnings, fmt.Sprintf("mps.max_clients %d: the MPS server of %s takes %d (compute capability %s, CUDA %s); programs beyond that get a CUDA error",
				most, u.group, can, cmp.Or(u.gpu.ComputeCapability, "unknown"), cmp.Or(cuda, "unknown")))
		}
		if count := len(u.ids()); u.sharing.Mechanism == gpu.SharingMPS && u.offered() && count > most {
			warnings = append(warnings, fmt.Sprintf(
				"%s: %d instances, and its MPS server has %d clients at most, which are counted by CUDA contexts: when they are used up, the instances that are left take no work; make slices larger (slice_memory) unless tasks hold several",
				u.group, count, most))
		}
	}
	return warnings
}

// unmatched warns of what in a configuration concerns no GPU of the machine.
// There is nothing to say before every GPU has told what it is: until then it is not
// known which rule is for it.
func unmatched(c *config.Config, gpus []hardware.GPU, l *registry.Registry) []string {
	if !l.Knows(gpus) {
		return nil
	}
	var warnings []string
	first := map[int]bool{}
	ids := map[string]bool{}
	for _, g := range gpus {
		ids[g.UUID] = true
		for _, i := range g.Partitions {
			ids[i.UUID] = true
		}
		at := slices.IndexFunc(c.Rules, func(r config.Rule) bool { return r.Selects(g, l.Records[g.UUID].Index) })
		first[at] = true
	}
	for i := range c.Rules {
		if !first[i] {
			warnings = append(warnings, fmt.Sprintf("gpu[%d] selects no GPU of this machine that an earlier rule does not select", i))
		}
	}
	for id := range c.Ignored {
		if !ids[id] {
			warnings = append(warnings, fmt.Sprintf("ignored_gpu_ids: %q is not a device of this machine", id))
		}
	}
	slices.Sort(warnings)
	return warnings
}
