// SPDX-License-Identifier: MPL-2.0

package intel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

// Vendor is the vendor of every device that this backend sees.
const Vendor = "intel"

// Backend sees the GPUs of one machine. Its methods may be called from many
// goroutines.
type Backend struct {
	tree    sysfs.Tree
	guard   *guard.Guard
	refresh func()
	listen  func(context.Context, func(sysfs.Uevent)) error
	now     func() time.Time
	clients *sysfs.Clients
	rates   rates

	found sysfs.Found[seen]
	// told is what each card's driver has told of it, by PCI address. surveyed is set by the first
	// survey: cards that are new later have just come.
	told     map[string]told
	surveyed bool
}

// seen is a GPU or a virtual function as the last survey found it.
type seen struct {
	pci, owner string
	nodes      sysfs.Nodes
	function   bool
}

// New makes a backend that has looked at nothing yet.
func New(o sysfs.Options) *Backend {
	o = o.Filled()
	tree := sysfs.Tree{Root: o.Root}
	return &Backend{tree: tree, guard: guard.New(o.Timeout), refresh: o.Refresh, listen: o.Listen, now: o.Now,
		clients: &sysfs.Clients{Tree: tree, Now: o.Now}, rates: rates{last: map[string]sample{}}, told: map[string]told{}}
}

// Close has nothing to let go of.
func (b *Backend) Close() {}

// Release does something: no GPU is held open.
func (b *Backend) Release(f func() error) error { return f() }

const pciDevices = "sys/bus/pci/devices"

// drivers are those that make Intel's GPUs usable.
var drivers = []string{"i915", "xe"}

// errAbsent is a hardware.ErrAbsent.
var errAbsent error = hardware.Absence("neither i915 nor xe is loaded")

// Survey reads what GPUs there are and how each is.
func (b *Backend) Survey() (hardware.Machine, error) {
	b.refresh()
	defer func() { b.surveyed = true }()
	type outcome struct {
		driver    string
		addresses []string
	}
	o, err := guard.Call(b.guard, "bus", func() outcome { return outcome{b.driver(), b.cards()} })
	switch {
	case err != nil:
		return hardware.Machine{}, fmt.Errorf("read the PCI bus: %w", err)
	case o.driver == "":
		return hardware.Machine{}, errAbsent
	}
	found := hardware.Machine{Drivers: map[string]hardware.Driver{Vendor: {Version: o.driver}}}
	known := map[string]seen{}
	for i, pci := range o.addresses {
		type card struct {
			gpu       hardware.GPU
			self      seen
			functions []seen
		}
		uuid := b.uuid(pci)
		c, err := guard.Call(b.guard, uuid, func() card {
			g, functions := b.inspect(pci, uuid)
			return card{g, seen{pci: pci, owner: uuid, nodes: b.tree.Nodes(dir(pci))}, functions}
		})
		if err != nil {
			c = card{gpu: hardware.GPU{UUID: uuid, Problems: []hardware.Problem{hanging}}, self: seen{pci: pci, owner: uuid}}
		} else if !b.settled(pci, c.gpu.Partitions) {
			continue
		}
		c.gpu.Vendor, c.gpu.Type, c.gpu.Index, c.gpu.Minor = Vendor, "gpu", i, minor(c.self.nodes.Render)
		found.GPUs = append(found.GPUs, c.gpu)
		known[uuid] = c.self
		for n, f := range c.functions {
			known[c.gpu.Partitions[n].UUID] = f
		}
	}
	place(found.GPUs, known)
	b.found.Set(known)
	return found, nil
}

// place finds where programs count each device: in order of PCI addresses, virtual
// functions among the cards.
func place(gpus []hardware.GPU, known map[string]seen) {
	var addresses []string
	for _, s := range known {
		addresses = append(addresses, s.pci)
	}
	slices.Sort(addresses)
	at := func(uuid string) int { return slices.Index(addresses, known[uuid].pci) }
	for i := range gpus {
		gpus[i].Position = at(gpus[i].UUID)
		for n := range gpus[i].Partitions {
			gpus[i].Partitions[n].Position = at(gpus[i].Partitions[n].UUID)
		}
	}
}

// driver is which of the drivers are loaded, with the kernel that they came with: they
// have no versions of their own.
func (b *Backend) driver() string {
	for _, name := range drivers {
		if b.tree.Has("sys/module", name) {
			release := b.tree.Line("proc/sys/kernel/osrelease")
			return strings.TrimSpace(name + " " + release)
		}
	}
	return ""
}

// cards are the PCI addresses of GPUs on cards, which one of the drivers serves.
// Virtual functions are parts of theirs.
func (b *Backend) cards() []string {
	var found []string
	for _, pci := range b.tree.Names(pciDevices) {
		vendor, _ := b.tree.Int(dir(pci), "vendor")
		class, _ := b.tree.Int(dir(pci), "class")
		// 0x0300 and 0x0380 are display controllers; bus 0 is in the processor.
		if vendor != 0x8086 || class>>16 != 0x03 || strings.HasPrefix(pci, "0000:00:") || b.tree.Has(dir(pci), "physfn") || !b.served(pci) {
			continue
		}
		found = append(found, pci)
	}
	return found
}

// served reports whether a driver has made a render node of a device.
func (b *Backend) served(pci string) bool {
	name := b.tree.Link(dir(pci), "driver")
	return (name == "i915" || name == "xe") && b.tree.Nodes(dir(pci)).Render != ""
}

func dir(pci string) string { return pciDevices + "/" + pci }

func minor(render string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(render, "renderD"))
	if err != nil {
		return 0
	}
	return n
}

// told is what names a card and its virtual functions.
type told struct {
	serial bool
	// sized are the functions whose memory the driver tells, coming is set for a card that has come
	// since the first survey, and less is since when it tells less than before.
	sized  map[int]bool
	coming bool
	less   time.Time
}

// settling is for how long a card may tell less than before, or come without a serial number: its driver
// is being loaded or unloaded, and makes the card's node and its other files one after the other.
const settling = 10 * time.Second

// settled reports whether a card is named by all that its driver tells. Under another name it would be
// another device, which would then be missed for good.
func (b *Backend) settled(pci string, functions []hardware.Partition) bool {
	last, known := b.told[pci]
	last.coming = last.coming || !known && b.surveyed
	now := told{serial: b.serial(pci) != "", sized: map[int]bool{}}
	less := !now.serial && (last.serial || last.coming)
	for _, f := range functions {
		now.sized[f.GI] = f.MemoryMiB > 0
		less = less || last.sized[f.GI] && f.MemoryMiB == 0
	}
	if less && last.less.IsZero() {
		last.less = b.now()
	}
	if less && b.now().Sub(last.less) < settling {
		now = last
	}
	b.told[pci] = now
	return now.less.IsZero()
}

// serial is a card's serial number; empty where the driver tells none.
func (b *Backend) serial(pci string) string {
	for _, file := range []string{"serial_number", "unique_id"} {
		if serial := b.tree.Line(dir(pci), file); strings.Trim(serial, "0x") != "" {
			return serial
		}
	}
	return ""
}

// uuid names a GPU by its serial number where the driver tells one, else by the machine
// and the slot.
func (b *Backend) uuid(pci string) string {
	name := "slot " + b.tree.Line("etc/machine-id") + " " + pci
	if serial := b.serial(pci); serial != "" {
		name = "serial " + serial
	}
	sum := sha256.Sum256([]byte("intel " + name))
	h := hex.EncodeToString(sum[:16])
	return fmt.Sprintf("GPU-%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// on runs f with a device of the last survey, bounded in time.
func on[T any](b *Backend, uuid string, f func(seen) T) (T, error) {
	b.refresh()
	return sysfs.Ask(&b.found, b.guard, uuid, func(s seen) string { return s.owner }, f)
}

// Probe tries whether a GPU works again: a driver serves it, and its node can be
// opened. Whether a kernel runs on it, only a program of Level Zero's could tell.
func (b *Backend) Probe(what hardware.ProbeTarget) error {
	err, callErr := on(b, what.UUID, func(s seen) error {
		if !b.served(s.pci) {
			return errors.New("no driver serves it")
		}
		node, err := os.OpenFile(b.tree.Path("dev/dri", s.nodes.Render), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("open it: %w", err)
		}
		return node.Close()
	})
	return errors.Join(callErr, err)
}
