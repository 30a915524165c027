// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Card is one simulated device of a vendor other than NVIDIA.
type Card struct {
	Model string
	NUMA  int
	// Mode is the partition mode that it begins with, such as "cpx-nps4".
	Mode string
	CardProduct
}

// CardProduct is one row of the catalog of such devices. The figures are those that
// real machines show, as far as dumps of them are published.
type CardProduct struct {
	Vendor, Name string
	// Named is set where the card itself tells its name.
	Named     bool
	DeviceID  uint64
	MemoryMiB int64
	// Watts is the power limit, the clocks are the maximum.
	Watts, CoreMHz, MemoryMHz int64
	// Of AMD's: the instruction set, SIMDs, and how many chiplets there are to make
	// partitions of; Linked cards are joined by XGMI.
	Target, SIMDs uint64
	Chiplets      int
	Linked        bool
	// AICores are those of Ascend's; without MemoryMHz the memory is not on the chip.
	AICores int64
	// Driver is the kernel module of Intel's: i915 tells how much memory there is, xe of
	// this release does not. Chiplets are then the card and its virtual functions.
	Driver string
}

var cards = map[string]CardProduct{
	"MI210":   {Vendor: "amd", Name: "AMD Instinct MI210", DeviceID: 0x740f, MemoryMiB: 65520, Watts: 300, CoreMHz: 1700, MemoryMHz: 1600, Target: 90010, SIMDs: 416, Chiplets: 1, Linked: true},
	"MI250X":  {Vendor: "amd", Name: "AMD Instinct MI250X", DeviceID: 0x7408, MemoryMiB: 65520, Watts: 500, CoreMHz: 1700, MemoryMHz: 1600, Target: 90010, SIMDs: 440, Chiplets: 1, Linked: true},
	"MI300X":  {Vendor: "amd", Name: "AMD Instinct MI300X OAM", Named: true, DeviceID: 0x74a1, MemoryMiB: 196592, Watts: 750, CoreMHz: 2100, MemoryMHz: 1300, Target: 90402, SIMDs: 1216, Chiplets: 8, Linked: true},
	"Flex170": {Vendor: "intel", Name: "Intel Data Center GPU Flex 170", DeviceID: 0x56c0, MemoryMiB: 14248, Watts: 150, CoreMHz: 2050, Driver: "i915", Chiplets: 8},
	"A770":    {Vendor: "intel", Name: "Intel Arc A770", DeviceID: 0x56a0, MemoryMiB: 16288, Watts: 225, CoreMHz: 2400, Driver: "xe", Chiplets: 1},
	"910B3":   {Vendor: "huawei", Name: "Huawei Ascend 910B3", DeviceID: 0xd802, MemoryMiB: 65536, CoreMHz: 1800, MemoryMHz: 1600, AICores: 20, Linked: true},
	"310P3":   {Vendor: "huawei", Name: "Huawei Ascend 310P3", DeviceID: 0xd500, MemoryMiB: 21527, CoreMHz: 1080, AICores: 8},
	"MI308X":  {Vendor: "amd", Name: "AMD Instinct MI308X", DeviceID: 0x74a2, MemoryMiB: 196592, Watts: 650, CoreMHz: 2100, MemoryMHz: 1300, Target: 90402, SIMDs: 320, Chiplets: 4, Linked: true},
}

// uniqueID is the ID burned into the i-th card.
func (t *Topology) uniqueID(i int) uint64 {
	sum := sha256.Sum256([]byte(fmt.Sprintf("nomad-gpu simulated card %s/%d", t.Name, i)))
	return binary.BigEndian.Uint64(sum[:8]) | 1<<63
}

// CardPCI is the address of the i-th card, above those of NVIDIA's GPUs.
func (t *Topology) CardPCI(i int) string { return fmt.Sprintf("0000:%02x:00.0", cardBus+i) }

// cardBus is the bus of the first card.
const cardBus = 0x80

// CardUUID is what a backend calls the i-th card.
func (t *Topology) CardUUID(i int) string {
	if t.Cards[i].Vendor == "huawei" {
		return "NPU-" + t.dieID(i)
	}
	if t.Cards[i].Vendor == "intel" {
		sum := sha256.Sum256([]byte("intel slot " + t.Name + " " + t.CardPCI(i)))
		h := hex.EncodeToString(sum[:16])
		return fmt.Sprintf("GPU-%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
	}
	return fmt.Sprintf("GPU-%016x", t.uniqueID(i))
}

// PartitionUUID is its name for the card's n-th partition.
func (t *Topology) PartitionUUID(i, n int) string {
	if t.Cards[i].Vendor == "huawei" {
		return fmt.Sprintf("%s-%s-%d", t.CardUUID(i), t.Cards[i].vnpus()[n], firstVNPU+16*t.physical(i)+n)
	}
	if t.Cards[i].Vendor == "intel" {
		return fmt.Sprintf("%s-vf%d", t.CardUUID(i), n)
	}
	return fmt.Sprintf("%s-%s-%d", t.CardUUID(i), t.Cards[i].Mode, n)
}

// CardModels are the names of such devices that a topology file may use, sorted.
func CardModels() []string {
	names := make([]string, 0, len(cards))
	for name := range cards {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// parts is how many partitions a mode makes of a card.
func (c CardProduct) parts(mode string) (int, error) {
	if c.Vendor == "huawei" {
		names := Card{Mode: mode}.vnpus()
		return max(1, len(names)), c.checkVNPUs(names)
	}
	if c.Vendor == "intel" {
		n, err := strconv.Atoi(strings.TrimPrefix(cmp.Or(mode, "vf-1"), "vf-"))
		if err != nil || n < 1 || n >= max(2, c.Chiplets) {
			return 0, fmt.Errorf("the card has up to %d virtual functions; write \"vf-2\" for two", c.Chiplets-1)
		}
		return n, nil
	}
	compute := cmp.Or(mode, "spx")
	if len(compute) > 3 {
		compute = compute[:3]
	}
	n := map[string]int{"spx": 1, "dpx": 2, "qpx": 4, "cpx": c.Chiplets}[compute]
	if n == 0 || n > c.Chiplets || c.Chiplets%n != 0 {
		return 0, fmt.Errorf("a card with %d chiplets has no partition mode %q", c.Chiplets, mode)
	}
	return n, nil
}

// CardParts is how many partitions the i-th card begins with; 0 where it is whole.
func (t *Topology) CardParts(i int) int {
	if t.Cards[i].Vendor == "huawei" {
		return len(t.Cards[i].vnpus())
	}
	n, err := t.Cards[i].parts(t.Cards[i].Mode)
	if err != nil || n == 1 {
		return 0
	}
	return n
}
