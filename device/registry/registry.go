// SPDX-License-Identifier: MPL-2.0

package registry

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/datafile"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Registry is what must outlive a reboot: the index that belongs to each UUID for
// good, how each device was offered last, and what a GPU that is missing now
// looked like. Nomad forgets what an allocation holds when a group is renamed
// and would book the device twice; the registry keeps names from changing.
type Registry struct {
	path    string
	saved   []byte
	Records map[string]*Record
}

// Record is what the registry knows of one device.
type Record struct {
	Index   int            `json:"index"`
	Sharing config.Sharing `json:"offer"`
	// Parent is the GPU of a MIG instance.
	Parent string `json:"parent,omitempty"`
	// Hardware is the GPU as last seen; absent for MIG instances.
	Hardware *hardware.GPU `json:"hardware,omitempty"`
	// Links is the most links to others that the GPU was seen to have.
	Links int `json:"nvlinks,omitempty"`
}

type registryFile struct {
	Version int                `json:"version"`
	Devices map[string]*Record `json:"devices"`
}

const (
	registryVersion = 1
	registryName    = "devices.json"
)

// Open is Read for one who will save it.
func Open(dataDir string) (*Registry, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("open registry: %w", err)
	}
	return Read(dataDir)
}

// Read reads the registry of a node; a node without one gets an empty one.
func Read(dataDir string) (*Registry, error) {
	l := &Registry{path: filepath.Join(dataDir, registryName), Records: map[string]*Record{}}
	file, text, err := datafile.Read[registryFile](l.path, registryVersion)
	if err != nil {
		return nil, fmt.Errorf("read registry: %w", err)
	}
	if file.Devices != nil {
		l.Records = file.Devices
	}
	l.saved = text
	return l, nil
}

// Find returns the UUID that is given, or the only one that begins with it.
// It refuses one that no plugin with this data directory has seen and that is not
// cordoned in it, so that a typing mistake, or another directory, is not taken for done.
func Find(dataDir, given string) (uuid string, err error) {
	if err := checkUUID(given); err != nil {
		return "", err
	}
	l, err := Read(dataDir)
	if err != nil {
		return "", err
	}
	if l.Records[given] != nil || OpenCordons(dataDir).Has(given) {
		return given, nil
	}
	if l.saved == nil {
		return "", fmt.Errorf("no plugin has run with the data directory %s: it has no %s; write -data-dir=DIR with the data_dir of the plugin's configuration", dataDir, registryName)
	}
	known := slices.Sorted(maps.Keys(l.Records))
	matches := slices.DeleteFunc(slices.Clone(known), func(uuid string) bool { return !strings.HasPrefix(uuid, given) })
	switch len(matches) {
	case 0:
		return "", fmt.Errorf("%q is not known in %s; known are %s. Write -data-dir=DIR if the plugin's data_dir is another", given, dataDir, strings.Join(known, ", "))
	case 1:
		return matches[0], nil
	}
	return "", fmt.Errorf("%q is not one device: %s begin with it", given, strings.Join(matches, ", "))
}

// Known are the UUIDs that Find finds, in order; none where they cannot be
// read.
func Known(dataDir string) []string {
	l, err := Read(dataDir)
	if err != nil {
		return nil
	}
	cordons, err := OpenCordons(dataDir).All()
	if err != nil {
		return nil
	}
	known := map[string]bool{}
	for uuid := range l.Records {
		known[uuid] = true
	}
	for uuid := range cordons {
		known[uuid] = true
	}
	return slices.Sorted(maps.Keys(known))
}

// Knows reports whether all of some GPUs are entered.
func (l *Registry) Knows(gpus []hardware.GPU) bool {
	return !slices.ContainsFunc(gpus, func(g hardware.GPU) bool { return l.Records[g.UUID] == nil })
}

// Save writes the registry if it has changed.
func (l *Registry) Save() (err error) {
	l.saved, err = datafile.Write(l.path, registryFile{registryVersion, l.Records}, l.saved)
	return err
}

// Complete fills in the fields of MIG instances that a survey could not see with those
// known before: were they withdrawn, Nomad would forget who holds them.
func (l *Registry) Complete(machine hardware.Machine) hardware.Machine {
	machine.GPUs = slices.Clone(machine.GPUs)
	for n, g := range machine.GPUs {
		var last *hardware.GPU
		if r := l.Records[g.UUID]; r != nil {
			last = r.Hardware
		}
		machine.GPUs[n] = complete(g, last)
	}
	return machine
}

func complete(g hardware.GPU, last *hardware.GPU) hardware.GPU {
	var before, now []hardware.Partition
	if last != nil {
		before = last.Partitions
	}
	for _, i := range g.Partitions {
		at := slices.IndexFunc(before, func(b hardware.Partition) bool { return b.UUID == i.UUID })
		if !i.Known() && at >= 0 {
			problems := i.Problems
			i = before[at]
			i.Problems = problems
		}
		if i.Known() {
			now = append(now, i)
		}
	}
	if g.PartitionProblem != nil {
		if last == nil {
			g.Problems = append(slices.Clone(g.Problems), *g.PartitionProblem)
		}
		g.Partitioned = g.Partitioned || last != nil && last.Partitioned
		for _, i := range before {
			if !slices.ContainsFunc(now, func(n hardware.Partition) bool { return n.UUID == i.UUID }) {
				i.Problems = []hardware.Problem{*g.PartitionProblem}
				now = append(now, i)
			}
		}
	}
	slices.SortStableFunc(now, func(a, b hardware.Partition) int { return cmp.Or(a.GI-b.GI, a.CI-b.CI) })
	g.Partitions = now
	return g
}

// Admit enters the devices of a survey: new ones get the next indices in order
// of PCI address, known ones keep theirs.
func (l *Registry) Admit(gpus []hardware.GPU) {
	sorted := slices.Clone(gpus)
	slices.SortStableFunc(sorted, func(a, b hardware.GPU) int { return strings.Compare(a.PCIBusID, b.PCIBusID) })
	for _, g := range sorted {
		if !g.Known() {
			continue // its last state stays
		}
		seen := g
		seen.Problems, seen.PartitionProblem, seen.Partitions = nil, nil, slices.Clone(g.Partitions)
		for n := range seen.Partitions {
			seen.Partitions[n].Problems = nil
		}
		known := l.Enter(g.UUID, "")
		known.Hardware, known.Links = &seen, max(known.Links, seen.Links.Total())
		for _, i := range g.Partitions {
			l.Enter(i.UUID, g.UUID)
		}
	}
}

func (l *Registry) Enter(uuid, parent string) *Record {
	if r, ok := l.Records[uuid]; ok {
		return r
	}
	next := 0
	for _, r := range l.Records {
		if (r.Parent == "") == (parent == "") {
			next = max(next, r.Index+1)
		}
	}
	r := &Record{Index: next, Parent: parent}
	l.Records[uuid] = r
	return r
}

// Prune forgets the instances of a GPU that are not there any more: where the layout changes
// by itself there would be more of them from day to day.
func (l *Registry) Prune(parent string, there []hardware.Partition) {
	maps.DeleteFunc(l.Records, func(uuid string, r *Record) bool {
		return r.Parent == parent && !slices.ContainsFunc(there, func(p hardware.Partition) bool { return p.UUID == uuid })
	})
}

// GPUs lists the UUIDs of all physical GPUs ever seen, by index.
func (l *Registry) GPUs() []string {
	var all []string
	for uuid, r := range l.Records {
		if r.Parent == "" && r.Hardware != nil {
			all = append(all, uuid)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return l.Records[a].Index - l.Records[b].Index })
	return all
}

// HasVendor reports whether the node has, or had, a GPU of a vendor; of any for "".
func (l *Registry) HasVendor(vendor string) bool {
	for _, r := range l.Records {
		if r.Hardware != nil && (vendor == "" || r.Hardware.Vendor == vendor) {
			return true
		}
	}
	return false
}

// Instance is the UUID of a GPU's MIG instance by its numbers; empty where there is
// none of these, or no number is given. A number that is absent fits any.
func (l *Registry) Instance(uuid string, gi, ci int) string {
	known := l.Records[uuid]
	if gi == hardware.Absent || known == nil || known.Hardware == nil {
		return ""
	}
	for _, i := range known.Hardware.Partitions {
		if i.GI == gi && (ci == hardware.Absent || i.CI == ci) {
			return i.UUID
		}
	}
	return ""
}
