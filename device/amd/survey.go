// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// errAbsent is a hardware.ErrAbsent.
var errAbsent error = hardware.Absence("the amdgpu driver is not loaded, or shows no KFD")

// Survey reads what GPUs there are and how each is.
func (b *Backend) Survey() (hardware.Machine, error) {
	b.refresh()
	type outcome struct {
		version string
		cards   []card
		there   bool
	}
	o, err := guard.Call(b.guard, "topology", func() outcome {
		all := slices.DeleteFunc(cards(b.nodes()), b.builtIn)
		return outcome{b.tree.Line("sys/module/amdgpu/version"), all, b.tree.Has(kfdNodes)}
	})
	switch {
	case err != nil:
		return hardware.Machine{}, fmt.Errorf("read KFD's topology: %w", err)
	case !o.there:
		return hardware.Machine{}, errAbsent
	}
	found := hardware.Machine{Drivers: map[string]hardware.Driver{Vendor: {Version: o.version}}}
	known := map[string]seen{}
	for i, c := range o.cards {
		uuid := b.uuid(c.first())
		answer, err := guard.Call(b.guard, uuid, func() inspected { return b.inspect(c, links(o.cards, i), uuid) })
		g, mode := answer.gpu, answer.mode
		before, _ := b.found.Lookup(uuid)
		switch {
		case err != nil:
			g, mode = hardware.GPU{UUID: uuid, Problems: []hardware.Problem{hanging}}, before.mode
		case mode == "" && before.mode != "":
			// The driver is being unloaded: its files are gone, and KFD's are not yet. Partitions
			// of an unknown mode would be other devices.
			return hardware.Machine{}, errAbsent
		}
		g.Vendor, g.Type, g.Index, g.Minor, g.Position = Vendor, "gpu", i, int(c.first().renderMinor), c.first().position
		found.GPUs = append(found.GPUs, g)
		known[uuid] = seen{card: c, owner: uuid, mode: mode}
		for n, p := range g.Partitions {
			if n < len(c.nodes) {
				known[p.UUID] = seen{card: card{c.nodes[n : n+1]}, owner: uuid, partition: true, part: n, parts: len(c.nodes)}
			}
		}
	}
	b.found.Set(known)
	return found, nil
}

// builtInMemory is more than graphics in a processor are given of the host's memory by
// the firmware.
const builtInMemory = 4 << 30

// builtIn reports whether a GPU is part of a processor: those have no ID burned in, and
// a small share of the host's memory.
func (b *Backend) builtIn(c card) bool {
	if c.first().uniqueID != 0 {
		return false
	}
	total := b.tree.Amount(pciDir(c.first()), "mem_info_vram_total")
	if total < 0 {
		total = sumMemory(c)
	}
	return total >= 0 && total <= builtInMemory
}

// Absence is the report about every known GPU when a survey has failed.
func (b *Backend) Absence(err error) hardware.Driver {
	if errors.Is(err, guard.ErrHangs) {
		return hardware.Driver{Absent: &hardware.Problem{Code: "amdgpu-timeout", Tentative: true, Message: "the amdgpu driver does not answer",
			Action: "look for amdgpu lines in the kernel log; it is healthy again when the driver answers, else reboot the node"}}
	}
	return hardware.Driver{Absent: &hardware.Problem{Code: "amdgpu-absent", Message: errAbsent.Error(),
		Action: "load the amdgpu driver; it is healthy again when /sys/class/kfd is there"}}
}

// uuid is what ROCm calls a GPU, by the ID that is burned into it. Cards without one
// are named by the machine and the slot.
func (b *Backend) uuid(n node) string {
	if n.uniqueID != 0 {
		return fmt.Sprintf("GPU-%016x", n.uniqueID)
	}
	sum := sha256.Sum256([]byte("amd " + b.tree.Line("etc/machine-id") + " " + n.pci() + fmt.Sprint(n.fn)))
	h := hex.EncodeToString(sum[:16])
	return fmt.Sprintf("GPU-%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

var hanging = hardware.Problem{Code: "amdgpu-timeout", Tentative: true, Message: "the amdgpu driver does not answer for this GPU",
	Action: "look for amdgpu lines in the kernel log; it is healthy again when the driver answers, else reboot the node"}

// inspected is a GPU with the mode in which it is partitioned; empty where the kernel does not tell.
type inspected struct {
	gpu  hardware.GPU
	mode string
}

// inspect asks one GPU who and how it is.
func (b *Backend) inspect(c card, near hardware.Links, uuid string) inspected {
	first := c.first()
	dir := pciDir(first)
	g := hardware.GPU{UUID: uuid, PCIBusID: first.pci(), Model: b.model(first), Traits: hardware.Traits{NUMANode: -1, Links: near, Target: target(first.gfx)}}
	if node, ok := b.tree.Int(dir, "numa_node"); ok && node >= 0 {
		g.NUMANode = int(node)
	} else if !ok && first.cpu >= 0 {
		g.NUMANode = first.cpu // the CPUs come first in KFD's topology, in order of NUMA nodes
	}
	s := b.tree.Sensors(dir)
	g.PowerLimitWatts = max(0, per(s.PowerCap, 1e6))
	g.CoreClockMHz, g.MemoryClockMHz = int64(min(first.maxMHz, 1<<20)), max(0, first.memoryMHz)
	total := b.tree.Amount(dir, "mem_info_vram_total")
	if total < 0 {
		total = sumMemory(c)
	}
	g.MemoryMiB = max(0, per(total, 1<<20))
	g.Dmem = b.tree.DmemRegion(g.PCIBusID)
	g.Problems = b.health(dir)
	mode := b.findPartitions(c, &g)
	return inspected{g, mode}
}

// sumMemory is what all nodes of a card have; absent where one does not tell.
func sumMemory(c card) int64 {
	sum := int64(0)
	for _, n := range c.nodes {
		if n.memoryBytes < 0 {
			return -1
		}
		sum += n.memoryBytes
	}
	return sum
}

// partitionsOf is how many partitions a mode makes; 0 where that depends on the
// GPU.
var partitionsOf = map[string]int{"spx": 1, "dpx": 2, "tpx": 3, "qpx": 4}

// findPartitions adds a GPU's partitions; each is a device with a render
// node of its own. It returns the mode, empty where the kernel does not tell.
func (b *Backend) findPartitions(c card, g *hardware.GPU) string {
	dir := pciDir(c.first())
	compute, memory := strings.ToLower(b.tree.Line(dir, "current_compute_partition")), strings.ToLower(b.tree.Line(dir, "current_memory_partition"))
	if len(c.nodes) == 1 && (compute == "" || compute == "spx") {
		return compute
	}
	profile := compute
	if profile == "" {
		profile = fmt.Sprintf("x%d", len(c.nodes)) // the kernel does not tell, but there are several
	}
	if memory != "" {
		profile += "-" + memory
	}
	last := c.nodes[len(c.nodes)-1]
	expected := max(int(last.fn)+1, len(c.nodes), partitionsOf[compute], cpxPartitions(compute, c.first().deviceID))
	g.Partitioned = true
	for _, n := range c.nodes {
		bytes := n.memoryBytes
		if bytes < 0 && g.MemoryMiB > 0 {
			bytes = g.MemoryMiB << 20 / int64(expected)
		}
		g.Partitions = append(g.Partitions, hardware.Partition{
			UUID: fmt.Sprintf("%s-%s-%d", g.UUID, profile, n.fn), Kind: "partition", Profile: profile, GI: int(n.fn), Position: n.position,
			Name: g.Model + " " + strings.ToUpper(profile), MemoryMiB: max(0, per(bytes, 1<<20))})
	}
	evenOut(g.Partitions)
	if len(c.nodes) < expected {
		g.PartitionProblem = &hardware.Problem{Code: "partition-lost", Fatal: true,
			Message: fmt.Sprintf("the GPU is in mode %s, and not all of its %d partitions are there", profile, expected),
			Action:  "stop its tasks and set the mode again, or reset the GPU; see the amdgpu lines in the kernel log"}
	}
	return compute
}

// evenOut gives all partitions the memory of the smallest: the last has a little less
// than the others, and a group of equal ones tells one size.
func evenOut(partitions []hardware.Partition) {
	least := partitions[0].MemoryMiB
	for _, p := range partitions {
		least = min(least, p.MemoryMiB)
	}
	for n := range partitions {
		partitions[n].MemoryMiB = least
	}
}

func per(amount, unit int64) int64 {
	if amount < 0 {
		return hardware.Absent
	}
	return amount / unit
}

// target is ROCm's name of an instruction set: 90402 is gfx942.
func target(version uint64) string {
	if version == 0 || version > 999999 {
		return ""
	}
	return fmt.Sprintf("gfx%d%x%x", version/10000, version/100%100, version%100)
}

func pciDir(n node) string { return "sys/bus/pci/devices/" + n.pci() }
