// SPDX-License-Identifier: MPL-2.0

package intel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// products are Intel's cards by their PCI device ID. Others are named by it.
var products = map[int64]string{
	0x0bd5: "Intel Data Center GPU Max 1550", 0x0bd9: "Intel Data Center GPU Max 1100", 0x0bda: "Intel Data Center GPU Max 1100",
	0x56c0: "Intel Data Center GPU Flex 170", 0x56c1: "Intel Data Center GPU Flex 140",
	0x56a0: "Intel Arc A770", 0x56a1: "Intel Arc A750", 0x56a2: "Intel Arc A580", 0x56a5: "Intel Arc A380", 0x56a6: "Intel Arc A310",
	0xe20b: "Intel Arc B580", 0xe20c: "Intel Arc B570", 0xe211: "Intel Arc Pro B60", 0xe212: "Intel Arc Pro B50",
}

// Absence is the report about every known GPU when a survey has failed.
func (b *Backend) Absence(err error) hardware.Driver {
	if errors.Is(err, guard.ErrHangs) {
		return hardware.Driver{Absent: &hardware.Problem{Code: "intel-timeout", Tentative: true, Message: "the kernel does not answer for Intel's GPUs",
			Action: "look for i915 and xe lines in the kernel log; it is healthy again when the driver answers, else reboot the node"}}
	}
	return hardware.Driver{Absent: &hardware.Problem{Code: "intel-absent", Message: errAbsent.Error(),
		Action: "load the driver; it is healthy again when the GPU has its node in /dev/dri"}}
}

var hanging = hardware.Problem{Code: "intel-timeout", Tentative: true, Message: "the driver does not answer for this GPU",
	Action: "look for i915 and xe lines in the kernel log; it is healthy again when the driver answers, else reboot the node"}

// inspect asks one GPU who and how it is, and finds its virtual functions.
func (b *Backend) inspect(pci, uuid string) (hardware.GPU, []seen) {
	d := dir(pci)
	id, _ := b.tree.Int(d, "device")
	g := hardware.GPU{UUID: uuid, PCIBusID: pci, Model: products[id], Traits: hardware.Traits{NUMANode: -1, Dmem: b.tree.DmemRegion(pci)}}
	if g.Model == "" {
		g.Model = fmt.Sprintf("Intel %04x", id)
	}
	if node, ok := b.tree.Int(d, "numa_node"); ok && node >= 0 {
		g.NUMANode = int(node)
	}
	tiles := b.tiles(pci)
	g.Tiles = max(1, len(tiles))
	g.Functions = int(min(max(0, b.tree.Amount(dir(pci), "sriov_totalvfs")), maxFunctions))
	if bytes := b.memory(pci, tiles); bytes > 0 {
		g.MemoryMiB = bytes >> 20
	} else {
		g.Unsized = true
	}
	g.PowerLimitWatts = max(0, sysfs.Per(b.tree.Sensors(d).PowerCap, 1e6))
	g.CoreClockMHz = max(0, b.frequency(pci, "max_freq", "rps_max_freq_mhz"))
	g.Problems = b.health(pci)
	return g, b.functions(pci, uuid, &g)
}

// tiles are the directories of a card's tiles, as xe has them.
func (b *Backend) tiles(pci string) []string {
	var found []string
	for _, name := range b.tree.Names(dir(pci)) {
		if strings.HasPrefix(name, "tile") && b.tree.Has(dir(pci), name, "gt0") {
			found = append(found, dir(pci)+"/"+name)
		}
	}
	return found
}

// drm is a card's directory of i915.
func (b *Backend) drm(pci string) string {
	return dir(pci) + "/drm/" + b.tree.Nodes(dir(pci)).Card
}

// memory is a card's own in bytes, from whoever tells: xe for each tile, i915's newer
// releases, or the control groups' controller; -1 where neither does.
func (b *Backend) memory(pci string, tiles []string) int64 {
	sum := int64(-1)
	for _, tile := range tiles {
		if bytes := b.tree.Amount(tile, "physical_vram_size_bytes"); bytes > 0 {
			sum = max(0, sum) + bytes
		}
	}
	if sum > 0 {
		return sum
	}
	if bytes := b.tree.Amount(b.drm(pci), "lmem_total_bytes"); bytes > 0 {
		return bytes
	}
	return b.tree.DmemCapacity(pci)
}

// frequency reads one of the clocks in MHz, of xe or of i915; -1 is absent.
func (b *Backend) frequency(pci, xe, i915 string) int64 {
	if mhz := b.tree.Amount(dir(pci), "tile0/gt0/freq0", xe); mhz >= 0 {
		return mhz
	}
	return b.tree.Amount(b.drm(pci), "gt/gt0", i915)
}

// maxFunctions is how many virtual functions a PCI device can have by its number alone.
const maxFunctions = 256

// functions adds the virtual functions that a driver of the host serves; then the card
// itself is not offered beside them.
func (b *Backend) functions(pci, uuid string, g *hardware.GPU) []seen {
	count := b.tree.Amount(dir(pci), "sriov_numvfs")
	if count <= 0 || count > maxFunctions {
		return nil
	}
	var found []seen
	for n := range int(count) {
		address := b.tree.Link(dir(pci), fmt.Sprintf("virtfn%d", n))
		if address == "" || !b.served(address) {
			continue // a virtual machine has it, or no one
		}
		p := hardware.Partition{UUID: fmt.Sprintf("%s-vf%d", uuid, n+1), Kind: gpu.TypeVF, Profile: "vf", GI: n + 1}
		for _, file := range []string{"gt0/lmem_quota", "gt/lmem_quota"} {
			if bytes := b.tree.Amount(b.drm(pci), fmt.Sprintf("iov/vf%d", n+1), file); bytes > 0 {
				p.MemoryMiB, p.Profile = bytes>>20, strings.ToLower(gpu.FormatMemory(bytes>>20))
				break
			}
		}
		p.Name = fmt.Sprintf("%s VF %s", g.Model, p.Profile)
		g.Partitions = append(g.Partitions, p)
		found = append(found, seen{pci: address, owner: uuid, nodes: b.tree.Nodes(dir(address)), function: true})
	}
	g.Partitioned = len(found) > 0
	return found
}

// health reads the known faults of a GPU.
func (b *Backend) health(pci string) []hardware.Problem {
	var problems []hardware.Problem
	if b.tree.Has(dir(pci), "survivability_mode") || b.tree.Has(dir(pci), "survivability_info") {
		problems = append(problems, hardware.Problem{Code: "survivability-mode", Fatal: true, Message: "the card's firmware is broken, and only lets itself be replaced",
			Action: "flash the firmware (fwupd, xpu-smi updatefw), then power-cycle the node"})
	}
	for _, name := range b.tree.Names(b.drm(pci), "gt/gt0/error_counter") {
		if strings.HasPrefix(name, "fatal_") && b.tree.Amount(b.drm(pci), "gt/gt0/error_counter", name) > 0 {
			problems = append(problems, hardware.Problem{Code: "fatal-errors", Fatal: true, Message: "the GPU counted fatal errors since the driver was loaded",
				Action: "stop its tasks and reset the card; if it happens again, replace it"})
			break
		}
	}
	if b.tree.Properties(dir(pci), "aer_dev_fatal")["TOTAL_ERR_FATAL"] > 0 {
		problems = append(problems, hardware.Problem{Code: "pcie-fatal", Fatal: true, Message: "the PCIe link had fatal errors since the machine was started",
			Action: "drain the node and power-cycle it; if it happens again, look at the slot and the card"})
	}
	return problems
}

// Watch hears the kernel's messages about the GPUs until the context ends.
func (b *Backend) Watch(ctx context.Context, uuids []string, emit func(hardware.Event)) error {
	byPCI := map[string]string{}
	for _, uuid := range uuids {
		if s, known := b.found.Lookup(uuid); known {
			byPCI[s.pci] = uuid
		}
	}
	return b.listen(ctx, func(u sysfs.Uevent) {
		uuid := byPCI[u.PCI()]
		if e, told := eventOf(u); told && uuid != "" {
			e.UUID, e.GI, e.CI = uuid, hardware.Absent, hardware.Absent
			emit(e)
		}
	})
}

// eventOf reads a message: xe tells that it has given a GPU up and what would bring it
// back (Linux 6.15 on), i915 that a reset failed or was done.
func eventOf(u sysfs.Uevent) (hardware.Event, bool) {
	wedged, told := u.Values["WEDGED"]
	switch {
	case told && wedged != "none":
		return hardware.Event{Name: "GPU wedged", Problem: hardware.Problem{Code: hardware.EventCode + "gpu-wedged", Fatal: true,
			Message: "the driver has given the GPU up", Action: "stop its tasks, then do what the kernel asks for (" + wedged + "), or reboot the node"}}, true
	case told || u.Values["RESET"] == "1":
		return hardware.Event{Name: "GPU reset"}, true // what hung was the program's
	case u.Action == "add" || u.Action == "remove" || u.Action == "bind" || u.Action == "unbind":
		return hardware.Event{Name: "device " + u.Action}, true // the next survey sees it
	}
	return hardware.Event{}, false
}
