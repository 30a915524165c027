// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"fmt"
	"strconv"
	"strings"
)

// product is one row of the table of GPUs by their PCI device ID.
type product struct {
	name string
	// partitions is how many CPX makes.
	partitions int
}

// products are AMD's accelerators. Others are named by the driver, or by libdrm's
// list.
var products = map[uint64]product{
	0x6860: {"AMD Instinct MI25", 0},
	0x66a1: {"AMD Instinct MI50", 0},
	0x738c: {"AMD Instinct MI100", 0},
	0x7408: {"AMD Instinct MI250X", 0},
	0x740c: {"AMD Instinct MI250", 0},
	0x740f: {"AMD Instinct MI210", 0},
	0x74a0: {"AMD Instinct MI300A", 6},
	0x74a1: {"AMD Instinct MI300X", 8},
	0x74a2: {"AMD Instinct MI308X", 4},
	0x74a5: {"AMD Instinct MI325X", 8},
	0x74a9: {"AMD Instinct MI300X HF", 8},
	0x74b5: {"AMD Instinct MI300X VF", 8},
	0x75a0: {"AMD Instinct MI350X", 8},
	0x75a3: {"AMD Instinct MI355X", 8},
}

// cpxPartitions is how many partitions CPX makes of a GPU; 0 where that is not known.
func cpxPartitions(compute string, deviceID uint64) int {
	if compute != "cpx" {
		return 0
	}
	return products[deviceID].partitions
}

// idsFiles are where libdrm keeps the names of AMD's cards.
var idsFiles = []string{"usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids"}

// model is a GPU's full name: the one in the card's own memory, that of AMD's
// accelerators, or libdrm's; else its device ID, so that equal cards share a group.
func (b *Backend) model(n node) string {
	dir := pciDir(n)
	if name := b.tree.Line(dir, "product_name"); name != "" {
		if !strings.HasPrefix(name, "AMD") {
			name = "AMD " + name
		}
		return name
	}
	if p, known := products[n.deviceID]; known {
		return p.name
	}
	revision, _ := b.tree.Int(dir, "revision")
	for _, file := range idsFiles {
		if name := b.listed(file, n.deviceID, uint64(revision)); name != "" {
			return name
		}
	}
	return fmt.Sprintf("AMD %04x", n.deviceID)
}

// listed finds a card in libdrm's list: "device, revision, name" in hexadecimal.
func (b *Backend) listed(file string, device, revision uint64) string {
	text, _ := b.tree.Text(file)
	for line := range strings.Lines(text) {
		fields := strings.SplitN(line, ",", 3)
		if len(fields) != 3 {
			continue
		}
		d, err1 := strconv.ParseUint(strings.TrimSpace(fields[0]), 16, 32)
		r, err2 := strconv.ParseUint(strings.TrimSpace(fields[1]), 16, 32)
		if err1 == nil && err2 == nil && d == device && r == revision {
			return strings.TrimSpace(fields[2])
		}
	}
	return ""
}
