package device

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// deviceRegistry is what must outlive a reboot: the index that belongs to each UUID for
// good, how each device was offered last, and what a GPU that is missing now
// looked like. Nomad forgets what an allocation holds when a group is renamed
// and would book the device twice; the registry keeps names from changing.
type deviceRegistry struct {
	path    string
	saved   []byte
	records map[string]*record
}

// record is what the registry knows of one device.
type record struct {
	Index   int           `json:"index"`
	Sharing sharingConfig `json:"offer"`
	// Parent is the GPU of a MIG instance.
	Parent string `json:"parent,omitempty"`
	// Hardware is the GPU as last seen; absent for MIG instances.
	Hardware *hardware.GPU `json:"hardware,omitempty"`
	// NVLinks is the most links that the GPU was seen to have.
	NVLinks int `json:"nvlinks,omitempty"`
}

type registryFile struct {
	Version int                `json:"version"`
	Devices map[string]*record `json:"devices"`
}

func (f registryFile) version() int { return f.Version }

const (
	registryVersion = 1
	registryName    = "devices.json"
)

// openRegistry is readRegistry for who will save it.
func openRegistry(dataDir string) (*deviceRegistry, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	return readRegistry(dataDir)
}

// readRegistry reads the registry of a node; a node without one gets an empty one.
func readRegistry(dataDir string) (*deviceRegistry, error) {
	l := &deviceRegistry{path: filepath.Join(dataDir, registryName), records: map[string]*record{}}
	file, text, err := readData[registryFile](l.path, registryVersion)
	if err != nil {
		return nil, fmt.Errorf("read registry: %w", err)
	}
	if file.Devices != nil {
		l.records = file.Devices
	}
	l.saved = text
	return l, nil
}

// KnownDevice refuses a UUID that no plugin with this data directory has seen,
// so that a slip of the pen, or of the directory, is not taken for done.
func KnownDevice(dataDir, uuid string) error {
	l, err := readRegistry(dataDir)
	if err != nil {
		return err
	}
	if l.saved == nil {
		return fmt.Errorf("no plugin has run with the data directory %s: it has no %s; write -data-dir=DIR with the data_dir of the plugin's configuration", dataDir, registryName)
	}
	if l.records[uuid] == nil {
		known := slices.Sorted(maps.Keys(l.records))
		return fmt.Errorf("%q is not known in %s; known are %s. Write -data-dir=DIR if the plugin's data_dir is another", uuid, dataDir, strings.Join(known, ", "))
	}
	return nil
}

// save writes the registry if it has changed.
func (l *deviceRegistry) save() (err error) {
	l.saved, err = writeData(l.path, registryFile{registryVersion, l.records}, l.saved)
	return err
}

// complete fills in what a survey could not see of MIG instances with what was
// known of them: were they withdrawn, Nomad would forget who holds them.
func (l *deviceRegistry) complete(machine hardware.Machine) hardware.Machine {
	machine.GPUs = slices.Clone(machine.GPUs)
	for n, g := range machine.GPUs {
		var last *hardware.GPU
		if r := l.records[g.UUID]; r != nil {
			last = r.Hardware
		}
		machine.GPUs[n] = complete(g, last)
	}
	return machine
}

func complete(g hardware.GPU, last *hardware.GPU) hardware.GPU {
	var before, now []hardware.Instance
	if last != nil {
		before = last.Instances
	}
	for _, i := range g.Instances {
		at := slices.IndexFunc(before, func(b hardware.Instance) bool { return b.UUID == i.UUID })
		if !i.Known() && at >= 0 {
			problems := i.Problems
			i = before[at]
			i.Problems = problems
		}
		if i.Known() {
			now = append(now, i)
		}
	}
	if g.MIGProblem != nil {
		if last == nil {
			g.Problems = append(slices.Clone(g.Problems), *g.MIGProblem)
		}
		g.MIG = g.MIG || last != nil && last.MIG
		for _, i := range before {
			if !slices.ContainsFunc(now, func(n hardware.Instance) bool { return n.UUID == i.UUID }) {
				i.Problems = []hardware.Problem{*g.MIGProblem}
				now = append(now, i)
			}
		}
	}
	slices.SortStableFunc(now, func(a, b hardware.Instance) int { return cmp.Or(a.GI-b.GI, a.CI-b.CI) })
	g.Instances = now
	return g
}

// admit enters the devices of a survey: new ones get the next indices in order
// of PCI address, known ones keep theirs.
func (l *deviceRegistry) admit(gpus []hardware.GPU) {
	sorted := slices.Clone(gpus)
	slices.SortStableFunc(sorted, func(a, b hardware.GPU) int { return strings.Compare(a.PCIBusID, b.PCIBusID) })
	for _, g := range sorted {
		if !g.Known() {
			continue // what was known of it stays
		}
		seen := g
		seen.Problems, seen.MIGProblem, seen.Instances = nil, nil, slices.Clone(g.Instances)
		for n := range seen.Instances {
			seen.Instances[n].Problems = nil
		}
		known := l.enter(g.UUID, "")
		known.Hardware, known.NVLinks = &seen, max(known.NVLinks, seen.NVLinks.Total())
		for _, i := range g.Instances {
			l.enter(i.UUID, g.UUID)
		}
	}
}

func (l *deviceRegistry) enter(uuid, parent string) *record {
	if r, ok := l.records[uuid]; ok {
		return r
	}
	next := 0
	for _, r := range l.records {
		if (r.Parent == "") == (parent == "") {
			next = max(next, r.Index+1)
		}
	}
	r := &record{Index: next, Parent: parent}
	l.records[uuid] = r
	return r
}

// gpus lists the UUIDs of all physical GPUs ever seen, by index.
func (l *deviceRegistry) gpus() []string {
	var all []string
	for uuid, r := range l.records {
		if r.Parent == "" && r.Hardware != nil {
			all = append(all, uuid)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return l.records[a].Index - l.records[b].Index })
	return all
}

// instance is the UUID of a GPU's MIG instance by its numbers; empty where there is
// none of these, or no number is given. A number that is absent fits any.
func (l *deviceRegistry) instance(uuid string, gi, ci int) string {
	known := l.records[uuid]
	if gi == hardware.Absent || known == nil || known.Hardware == nil {
		return ""
	}
	for _, i := range known.Hardware.Instances {
		if i.GI == gi && (ci == hardware.Absent || i.CI == ci) {
			return i.UUID
		}
	}
	return ""
}
