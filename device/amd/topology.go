// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// node is a GPU, or a partition of one, as KFD's topology has it.
type node struct {
	number int // the directory's
	// position is where ROCm counts it.
	position int
	// gpuID is KFD's name of it in the files of processes; 0 where it does not tell.
	gpuID                 uint64
	domain, bus, dev, fn  uint64
	uniqueID, hiveID      uint64
	deviceID, gfx         uint64
	renderMinor           uint64
	simds, simdsPerCU     uint64
	maxMHz                uint64
	memoryBytes, usedSize int64 // -1 is absent
	memoryMHz             int64
	cpu                   int // the CPU node that it is attached to; -1 is absent
	peers                 []int
}

const (
	kfdNodes = "sys/class/kfd/kfd/topology/nodes"
	// The types of links in KFD's topology: those of HSA.
	linkPCIe = 2
	linkXGMI = 11
	// privateHeap and publicHeap are banks of the GPU's own memory; others are the
	// host's.
	publicHeap, privateHeap = 1, 2
	vendorID                = 0x1002
)

// pci is the address of the physical device.
func (n node) pci() string { return fmt.Sprintf("%04x:%02x:%02x.0", n.domain, n.bus, n.dev) }

// computeUnits is how many the node has; 0 where it does not tell.
func (n node) computeUnits() uint64 { return n.simds / max(1, n.simdsPerCU) }

// nodes reads those that are GPUs for computing, in the order in which ROCm counts
// them. Processors with graphics in them are left out.
func (b *Backend) nodes() []node {
	// A machine with eight GPUs in CPX has 64 nodes with 63 links each. KFD counts its
	// changes, so that they need not be read every time.
	generation := b.tree.Line("sys/class/kfd/kfd/topology/generation_id")
	if generation != "" && generation == b.generation {
		return b.read
	}
	b.read, b.generation = b.readNodes(), generation
	return b.read
}

func (b *Backend) readNodes() []node {
	var all []node
	for _, name := range b.tree.Names(kfdNodes) {
		number, err := strconv.Atoi(name)
		if err != nil || number < 0 {
			continue
		}
		p := b.tree.Properties(kfdNodes, name, "properties")
		if p["simd_count"] == 0 || p["cpu_cores_count"] != 0 || p["vendor_id"] != vendorID {
			continue
		}
		n := node{number: number, domain: p["domain"] & 0xffff, bus: p["location_id"] >> 8 & 0xff, dev: p["location_id"] >> 3 & 0x1f, fn: p["location_id"] & 7,
			uniqueID: p["unique_id"], hiveID: p["hive_id"], deviceID: p["device_id"], gfx: p["gfx_target_version"], renderMinor: p["drm_render_minor"],
			simds: p["simd_count"], simdsPerCU: p["simd_per_cu"], maxMHz: p["max_engine_clk_fcompute"], memoryBytes: -1, usedSize: -1, memoryMHz: -1, cpu: -1}
		if id, ok := b.tree.Int(kfdNodes, name, "gpu_id"); ok && id > 0 {
			n.gpuID = uint64(id)
		}
		b.readMemory(name, &n)
		b.readLinks(name, &n)
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b node) int { return a.number - b.number })
	for n := range all {
		all[n].position = n
	}
	return all
}

// readMemory adds up the banks of the node's own memory.
func (b *Backend) readMemory(name string, n *node) {
	for _, bank := range b.tree.Names(kfdNodes, name, "mem_banks") {
		p := b.tree.Properties(kfdNodes, name, "mem_banks", bank, "properties")
		if heap := p["heap_type"]; heap != publicHeap && heap != privateHeap || p["size_in_bytes"] > 1<<50 {
			continue
		}
		n.memoryBytes = max(0, n.memoryBytes) + int64(p["size_in_bytes"])
		n.memoryMHz = int64(min(p["mem_clk_max"], 1<<20))
		if used := b.tree.Amount(kfdNodes, name, "mem_banks", bank, "used_memory"); used >= 0 {
			n.usedSize = max(0, n.usedSize) + used
		}
	}
}

func (b *Backend) readLinks(name string, n *node) {
	for _, link := range b.tree.Names(kfdNodes, name, "io_links") {
		p := b.tree.Properties(kfdNodes, name, "io_links", link, "properties")
		to, told := p["node_to"]
		switch {
		case !told || to > 1<<16:
		case p["type"] == linkPCIe:
			n.cpu = int(to)
		case p["type"] == linkXGMI:
			n.peers = append(n.peers, int(to))
		}
	}
}

// card is a physical GPU: its nodes are one, or its partitions in order.
type card struct{ nodes []node }

func (c card) first() node { return c.nodes[0] }

// cards puts the nodes of one physical device together.
func cards(nodes []node) []card {
	type key struct{ domain, bus, dev, unique, fn uint64 }
	at := map[key]int{}
	var all []card
	for _, n := range nodes {
		k := key{n.domain, n.bus, n.dev, n.uniqueID, n.fn}
		if n.uniqueID != 0 {
			k.fn = 0 // the same ID on the same device is the same GPU
		}
		if i, known := at[k]; known {
			all[i].nodes = append(all[i].nodes, n)
			continue
		}
		at[k] = len(all)
		all = append(all, card{[]node{n}})
	}
	for i := range all {
		slices.SortStableFunc(all[i].nodes, func(a, b node) int { return cmp.Compare(a.fn, b.fn) })
	}
	return all
}

// links finds what XGMI joins a card to. Where it leads to every other GPU of its
// hive, as switches would, all are one neighborhood, named by the hive.
func links(all []card, of int) hardware.Links {
	where := map[int]int{} // node: card
	for i, c := range all {
		for _, n := range c.nodes {
			where[n.number] = i
		}
	}
	found := hardware.Links{Kind: hardware.LinkXGMI, Peers: map[string]int{}}
	for _, n := range all[of].nodes {
		for _, to := range n.peers {
			if peer, known := where[to]; known && peer != of {
				found.Peers[all[peer].first().pci()] = 1
			}
		}
	}
	if len(found.Peers) == 0 {
		return hardware.Links{}
	}
	mates := 0
	hive := all[of].first().hiveID
	for i, c := range all {
		if i != of && hive != 0 && c.first().hiveID == hive && found.Peers[c.first().pci()] != 0 {
			mates++
		} else if i != of && c.first().hiveID == hive {
			return found
		}
	}
	if hive == 0 || mates != len(found.Peers) {
		return found
	}
	return hardware.Links{Kind: hardware.LinkXGMI, Switches: mates, Fabric: fmt.Sprintf("%016x", hive)}
}
