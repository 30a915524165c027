// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// inspect asks one GPU everything that a survey needs. A missing value stays empty,
// and is a problem only where the GPU cannot be used without it.
func (b *Backend) inspect(d nvml.Device, uuid string) hardware.GPU {
	g := hardware.GPU{UUID: uuid}
	var ret nvml.Return
	if g.Model, ret = d.GetName(); ret != nvml.SUCCESS {
		g.Problems = append(g.Problems, problemOf(ret, "reading the GPU's name"))
		return g
	}
	pci, ret := d.GetPciInfo()
	if ret != nvml.SUCCESS {
		g.Problems = append(g.Problems, problemOf(ret, "reading the GPU's PCI address"))
		return g
	}
	g.PCIBusID = busID(pci)
	if ret = b.memoryOf(d, &g); ret != nvml.SUCCESS {
		g.Problems = append(g.Problems, problemOf(ret, "reading the GPU's memory"))
		return g
	}
	g.Minor, _ = d.GetMinorNumber()
	g.Traits = b.traits(d, g.PCIBusID)
	findInstances(d, uint64(g.MemoryMiB)<<20, &g)
	g.Problems = append(health(d), b.fabric(d)...)
	return g
}

// busID spells a PCI address as sysfs does: with a domain of four digits, or more where it
// needs them. NVML pads the domain to eight and writes capitals.
func busID(info nvml.PciInfo) string {
	var raw []byte
	for _, c := range info.BusId {
		if c == 0 {
			break
		}
		raw = append(raw, byte(c))
	}
	id := strings.ToLower(string(raw))
	domain, rest, found := strings.Cut(id, ":")
	number, err := strconv.ParseUint(domain, 16, 32)
	if !found || err != nil {
		return id
	}
	return fmt.Sprintf("%04x:%s", number, rest)
}

func (b *Backend) traits(d nvml.Device, bus string) hardware.Traits {
	t := hardware.Traits{NUMANode: b.numaNode(bus), Links: b.nvlinks(d, bus)}
	if bar1, ret := d.GetBAR1MemoryInfo(); ret == nvml.SUCCESS {
		t.BAR1MiB = int64(bar1.Bar1Total >> 20)
	}
	if milliwatts, ret := d.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		t.PowerLimitWatts = int64(milliwatts / 1000)
	}
	if mhz, ret := d.GetMaxClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		t.CoreClockMHz = int64(mhz)
	}
	if mhz, ret := d.GetMaxClockInfo(nvml.CLOCK_MEM); ret == nvml.SUCCESS {
		t.MemoryClockMHz = int64(mhz)
	}
	generation, ret := d.GetMaxPcieLinkGeneration()
	if width, ret2 := d.GetMaxPcieLinkWidth(); ret == nvml.SUCCESS && ret2 == nvml.SUCCESS {
		t.PCIBandwidthMBps = pciBandwidth(generation, width)
	}
	if state, ret := d.GetDisplayMode(); ret == nvml.SUCCESS {
		t.DisplayState = stateName(state)
	}
	if state, ret := d.GetPersistenceMode(); ret == nvml.SUCCESS {
		t.PersistenceMode = stateName(state)
	}
	if major, minor, ret := d.GetCudaComputeCapability(); ret == nvml.SUCCESS {
		t.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	}
	if mode, ret := d.GetComputeMode(); ret == nvml.SUCCESS {
		t.Exclusive = mode != nvml.COMPUTEMODE_DEFAULT
	}
	if mode, ret := d.GetVirtualizationMode(); ret == nvml.SUCCESS {
		t.Virtual = mode == nvml.GPU_VIRTUALIZATION_MODE_VGPU
	}
	t.MemoryLimits = b.canLimitMemory(d)
	return t
}

// laneMBps is what one PCIe lane of a generation carries, in MB/s.
var laneMBps = map[int]int64{1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938, 6: 7563}

func pciBandwidth(generation, width int) int64 { return laneMBps[generation] * int64(width) }

func stateName(state nvml.EnableState) string {
	if state == nvml.FEATURE_ENABLED {
		return "Enabled"
	}
	return "Disabled"
}

// numaNode asks the kernel. NVML's NUMA node is that of a GPU's own memory where the CPU
// sees that as memory (Grace), and no CPU is on it.
func numaNode(bus string) int {
	text, err := os.ReadFile(filepath.Join("/sys/bus/pci/devices", bus, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return node
}

// nvlinks counts the active links by their other end. A library that
// cannot tell a switch from a GPU gives its PCI address, which is no GPU's.
func (b *Backend) nvlinks(d nvml.Device, self string) hardware.Links {
	var found hardware.Links
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.GetNvLinkState(link)
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		if b.has(symbolNVLinkRemote) {
			if kind, ret := d.GetNvLinkRemoteDeviceType(link); ret == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				found.Switches++
				continue
			}
		}
		remote, ret := d.GetNvLinkRemotePciInfo(link)
		if id := busID(remote); ret == nvml.SUCCESS && id != self {
			if found.Peers == nil {
				found.Peers = map[string]int{}
			}
			found.Peers[id]++
		}
	}
	return found
}
