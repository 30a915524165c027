package device

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
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
	c, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	inventory, err := takeInventory(c)
	if errors.Is(err, nvidia.ErrAbsent) {
		return []string{"NVML is not available here, so whether the rules select any GPU is not known"}, nil
	}
	return inventory.Warnings, err
}

// TakeInventory looks at the hardware once and says what a plugin with this
// configuration exposes. It changes nothing. Faults, cordons and tasks are those
// that a running plugin and driver have written down.
func TakeInventory(path string) (Inventory, error) {
	c, err := readConfig(path)
	if err != nil {
		return Inventory{}, err
	}
	return takeInventory(c)
}

func takeInventory(c *config) (Inventory, error) {
	p, err := openPlatform(hclog.NewNullLogger(), c)
	if err != nil {
		return Inventory{}, err
	}
	defer p.close()
	machine, err := p.observer.Survey()
	if errors.Is(err, nvidia.ErrAbsent) {
		return Inventory{}, fmt.Errorf("%w; install or load the NVIDIA driver, or name a configuration with a simulation block", err)
	}
	if err != nil {
		return Inventory{}, err
	}
	l, err := readRegistry(c.dataDir)
	if err != nil {
		return Inventory{}, err
	}
	machine = l.complete(machine)
	now, leases, standing, err := recorded(c, p.bootID)
	if err != nil {
		return Inventory{}, err
	}
	units := plan(c, l, machine, now)
	for _, u := range units {
		u.cordon = cmp.Or(u.cordon, standing[u.uuid])
	}
	i := Inventory{DriverVersion: machine.DriverVersion, CUDAVersion: machine.CUDAVersion, Simulated: c.simulation != nil,
		Warnings: c.unmatched(machine.GPUs, l)}
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

// recorded reads what a running plugin and driver have written down; where they
// have not run there is nothing. standing are the cordons that only the running
// plugin knows of, by UUID: what it waits for, or how many clients there are.
func recorded(c *config, bootID string) (now planInputs, leases []gpu.Lease, standing map[string]string, err error) {
	now = planInputs{faults: map[string][]gpu.Fault{}, busy: map[string]bool{}}
	if now.cordons, err = OpenCordons(c.dataDir).All(); err != nil {
		return now, nil, nil, err
	}
	if _, err := os.Stat(filepath.Join(c.stateDir, "gpus")); err != nil {
		return now, nil, nil, nil
	}
	state, err := statedir.Open(c.stateDir, bootID)
	if err != nil {
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

// held enters what tasks hold, and returns the live leases.
func (now *planInputs) held(c *config, state *statedir.Dir) ([]gpu.Lease, error) {
	leases, err := state.Leases()
	if err != nil {
		return nil, err
	}
	clock := time.Now()
	r, err := openReservations(c.dataDir, c.modeChangeDelay, clock)
	if err != nil {
		return nil, err
	}
	r.match(clock)
	live, recent := r.held(clock)
	now.recent = merge(recent, holders(liveAfter(leases, clock.Add(-c.modeChangeDelay))))
	leases = liveAfter(leases, clock)
	now.holders = merge(live, holders(leases))
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
	for _, t := range holdingsOf(leases, u.uuid) {
		entry.Tasks = append(entry.Tasks, fmt.Sprintf("%s/%s (alloc %.8s)", t.lease.Job, t.lease.Task, t.lease.AllocID))
	}
	return entry
}

// unmatched warns of what in a configuration concerns no GPU of the machine.
func (c *config) unmatched(gpus []hardware.GPU, l *deviceRegistry) []string {
	var warnings []string
	first := map[int]bool{}
	ids := map[string]bool{}
	for _, g := range gpus {
		ids[g.UUID] = true
		for _, i := range g.Instances {
			ids[i.UUID] = true
		}
		at := slices.IndexFunc(c.rules, func(r rule) bool { return r.selector.matches(g, l.records[g.UUID].Index) })
		first[at] = true
	}
	for i := range c.rules {
		if !first[i] {
			warnings = append(warnings, fmt.Sprintf("gpu[%d] selects no GPU of this machine that an earlier rule does not select", i))
		}
	}
	for id := range c.ignored {
		if !ids[id] {
			warnings = append(warnings, fmt.Sprintf("ignored_gpu_ids: %q is no device of this machine", id))
		}
	}
	slices.Sort(warnings)
	return warnings
}
