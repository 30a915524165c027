// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

const (
	kfd      = "sys/class/kfd/kfd"
	kfdNodes = kfd + "/topology/nodes"
)

// amd shows AMD's cards: KFD's topology with a node for each partition, the PCI
// devices, and what programs use.
func (k *Kernel) amd(c Control, files fileSet) {
	t := k.topology
	if !slices.ContainsFunc(t.Cards, func(c Card) bool { return c.Vendor == "amd" }) || c.gone("amd") {
		return
	}
	files.text(cmp.Or(c.Drivers["amd"], "6.12.12"), "sys/module/amdgpu/version")
	files.number(int64(k.generation), kfd, "topology/generation_id")
	cpus := 1
	for _, card := range t.Cards {
		cpus = max(cpus, card.NUMA+1)
	}
	for n := range cpus {
		files[fmt.Sprintf("%s/%d/properties", kfdNodes, n)] = "cpu_cores_count 64\nsimd_count 0\nvendor_id 0\n"
	}
	var nodes []amdNode
	for i, card := range t.Cards {
		if card.Vendor != "amd" || c.GPUs[t.CardUUID(i)].Missing {
			continue
		}
		k.amdPCI(i, c.GPUs[t.CardUUID(i)], files)
		if !c.GPUs[t.CardUUID(i)].Lost {
			nodes = append(nodes, k.amdNodes(i, c.GPUs[t.CardUUID(i)])...)
		}
	}
	for at := range nodes {
		nodes[at].number = cpus + at
	}
	for _, n := range nodes {
		k.amdNode(n, nodes, files)
		k.amdProcesses(n, c.GPUs[t.CardUUID(n.card)], files)
	}
}

// amdNode is a node of KFD's topology: the part-th partition of a card.
type amdNode struct{ number, card, part, parts int }

func (n amdNode) gpuID() int { return 1000 + n.card*100 + n.part }

// mode is a card's partition mode now: that of computing, and of memory.
func (k *Kernel) mode(i int) (compute, memory string) {
	compute, memory, _ = strings.Cut(strings.ToUpper(k.settings.get(k.topology.CardUUID(i)).Mode), "-")
	if compute == "" {
		compute = "SPX"
	}
	if memory == "" {
		memory = "NPS1"
	}
	return compute, memory
}

func (k *Kernel) amdNodes(i int, condition Condition) []amdNode {
	compute, _ := k.mode(i)
	parts, err := k.topology.Cards[i].parts(strings.ToLower(compute))
	if err != nil {
		return nil
	}
	var all []amdNode
	for part := range parts {
		if !slices.Contains(condition.LostPartitions, part) {
			all = append(all, amdNode{card: i, part: part, parts: parts})
		}
	}
	return all
}

// amdMemory is a node's memory in bytes. Of real partitions the last has 16 MiB less.
func (k *Kernel) amdMemory(n amdNode) int64 {
	bytes := k.topology.Cards[n.card].MemoryMiB << 20 / int64(n.parts)
	if n.parts > 1 && n.part == n.parts-1 {
		bytes -= 16 << 20
	}
	return bytes
}

// hive is the XGMI hive of all linked cards of one NUMA node's side.
const hive = 15188982192727901047

func (k *Kernel) amdNode(n amdNode, all []amdNode, files fileSet) {
	card := k.topology.Cards[n.card]
	dir := fmt.Sprintf("%s/%d", kfdNodes, n.number)
	links := uint64(0)
	if card.Linked {
		links = hive
	}
	files[dir+"/properties"] = fmt.Sprintf("cpu_cores_count 0\nsimd_count %d\nsimd_per_cu 4\nmem_banks_count 1\ngfx_target_version %d\nvendor_id 4098\ndevice_id %d\n"+
		"location_id %d\ndomain 0\ndrm_render_minor %d\nhive_id %d\nmax_engine_clk_fcompute %d\nlocal_mem_size 0\nunique_id %d\nnum_xcc %d\n",
		card.SIMDs/uint64(n.parts), card.Target, card.DeviceID, (cardBus+n.card)<<8|n.part, firstRender+k.firstNode(n.card)+n.part, links, card.CoreMHz,
		k.topology.uniqueID(n.card), card.Chiplets/n.parts)
	files.number(int64(n.gpuID()), dir, "gpu_id")
	files.text("ip discovery", dir, "name")
	files[dir+"/mem_banks/0/properties"] = fmt.Sprintf("heap_type 1\nsize_in_bytes %d\nflags 0\nwidth 8192\nmem_clk_max %d\n", k.amdMemory(n), card.MemoryMHz)
	used := int64(0)
	for _, p := range k.control.gpu(k.topology.CardUUID(n.card)).Processes {
		if p.Instance == "" || p.Instance == k.partitionUUID(n) {
			used += int64(p.MemoryMiB) << 20
		}
	}
	files.number(used, dir, "mem_banks/0/used_memory")
	files[dir+"/io_links/0/properties"] = fmt.Sprintf("type 2\nnode_from %d\nnode_to %d\nweight 20\n", n.number, max(0, card.NUMA))
	link := 1
	for _, other := range all {
		if other.number != n.number && card.Linked && k.topology.Cards[other.card].Linked {
			files[fmt.Sprintf("%s/io_links/%d/properties", dir, link)] = fmt.Sprintf("type 11\nnode_from %d\nnode_to %d\nweight 15\nmax_bandwidth 50000\n", n.number, other.number)
			link++
		}
	}
	node := k.firstNode(n.card) + n.part
	files[fmt.Sprintf("sys/class/drm/renderD%d/device/drm/card%d/dev", firstRender+node, node)] = fmt.Sprintf("226:%d\n", node)
	files[fmt.Sprintf("sys/class/drm/renderD%d/device/drm/renderD%d/dev", firstRender+node, firstRender+node)] = fmt.Sprintf("226:%d\n", firstRender+node)
}

// partitionUUID is what a backend calls a node that is a partition now.
func (k *Kernel) partitionUUID(n amdNode) string {
	compute, memory := k.mode(n.card)
	return fmt.Sprintf("%s-%s-%s-%d", k.topology.CardUUID(n.card), strings.ToLower(compute), strings.ToLower(memory), n.part)
}

// amdPCI shows the PCI device.
func (k *Kernel) amdPCI(i int, c Condition, files fileSet) {
	card := k.topology.Cards[i]
	dir := "sys/bus/pci/devices/" + k.topology.CardPCI(i)
	files.text("0x1002", dir, "vendor")
	files.text(fmt.Sprintf("0x%04x", card.DeviceID), dir, "device")
	files.text("0x00", dir, "revision")
	files.number(int64(card.NUMA), dir, "numa_node")
	files.text(fmt.Sprintf("%016x", k.topology.uniqueID(i)), dir, "unique_id")
	if card.Named {
		files.text(card.Name, dir, "product_name")
	}
	if card.Chiplets > 1 {
		compute, memory := k.mode(i)
		files.text(compute, dir, "current_compute_partition")
		files.text(memory, dir, "current_memory_partition")
		files.text("SPX, DPX, QPX, CPX", dir, "available_compute_partition")
		files.text("NPS1, NPS4", dir, "available_memory_partition")
	}
	used := int64(0)
	for _, p := range c.Processes {
		used += int64(p.MemoryMiB) << 20
	}
	if card.Chiplets > 1 {
		files[dir+"/gpu_metrics"] = k.amdMetrics(i, c)
	}
	files.number(card.MemoryMiB<<20, dir, "mem_info_vram_total")
	files.number(used+300<<20, dir, "mem_info_vram_used")
	files.number(int64(c.GPUPercent), dir, "gpu_busy_percent")
	files.number(int64(c.MemoryPercent), dir, "mem_busy_percent")
	files.number(0, dir, "pcie_replay_count")
	files[dir+"/ras/umc_err_count"] = fmt.Sprintf("ue: %d\nce: 3\n", c.ECCUncorrected)
	files[dir+"/ras/gfx_err_count"] = "ue: 0\nce: 0\n"
	files[dir+"/ras/xgmi_wafl_err_count"] = fmt.Sprintf("ue: %d\nce: 0\n", c.LinkErrors)
	pages := "0x00000001 : 0x00001000 : R\n"
	if c.RemapPending {
		pages += "0x00000002 : 0x00001000 : P\n"
	}
	if c.RemapFailed {
		pages += "0x00000003 : 0x00001000 : F\n"
	}
	files[dir+"/ras/gpu_vram_bad_pages"] = pages
	k.hwmon(dir, card, c, files)
}

// amdMetrics is the kernel's table gpu_metrics in its revision 1.6, with how busy each
// partition is. All that is not told is ones.
func (k *Kernel) amdMetrics(i int, c Condition) string {
	const size, partitions, first, each = 1664, 306, 312, 168
	table := bytes.Repeat([]byte{0xff}, size)
	binary.NativeEndian.PutUint16(table, size)
	table[2], table[3] = 1, 6
	parts := uint16(0)
	for _, n := range k.amdNodes(i, c) {
		busy := uint32(0)
		for _, p := range c.Processes {
			if n.parts == 1 || p.Instance == k.partitionUUID(n) {
				busy += p.Percent
			}
		}
		for chiplet := range k.topology.Cards[i].Chiplets / n.parts {
			binary.NativeEndian.PutUint32(table[first+n.part*each+4*chiplet:], min(100, busy))
		}
		parts++
	}
	binary.NativeEndian.PutUint16(table[partitions:], parts)
	return string(table)
}

// hwmon shows a card's sensors.
func (k *Kernel) hwmon(dir string, card Card, c Condition, files fileSet) {
	dir += fmt.Sprintf("/hwmon/hwmon%d", 3)
	files.text("junction", dir, "temp2_label")
	files.number(1000*int64(cmp.Or(c.TemperatureC, 41)), dir, "temp2_input")
	files.text("mem", dir, "temp3_label")
	files.number(1000*int64(cmp.Or(c.TemperatureC, 41)-2), dir, "temp3_input")
	files.number(1e6*int64(cmp.Or(c.PowerWatts, 140)), dir, "power1_input")
	files.number(1e6*card.Watts, dir, "power1_cap")
	files.number(1e6*card.CoreMHz/10, dir, "freq1_input")
	files.number(1e6*card.MemoryMHz, dir, "freq2_input")
}

// amdProcesses shows what programs use of a node. KFD has a file for every GPU that a
// program may open.
func (k *Kernel) amdProcesses(n amdNode, c Condition, files fileSet) {
	for _, p := range c.Processes {
		dir := fmt.Sprintf("%s/proc/%d", kfd, p.PID)
		on := n.parts == 1 || p.Instance == k.partitionUUID(n)
		used := int64(0)
		if on {
			used = int64(p.MemoryMiB) << 20
			files.number(int64(n.gpuID()), dir, fmt.Sprintf("queues/%d/gpuid", n.number))
		}
		files.number(used, dir, fmt.Sprintf("vram_%d", n.gpuID()))
		units := int64(k.topology.Cards[n.card].SIMDs) / 4 / int64(n.parts)
		busy := int64(0)
		if on {
			busy = units * int64(p.Percent) / 100
		}
		files.number(busy, dir, fmt.Sprintf("stats_%d/cu_occupancy", n.gpuID()))
	}
}
