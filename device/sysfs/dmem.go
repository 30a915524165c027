// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"strconv"
	"strings"
)

// DmemRegion is the name under which control groups limit the memory of a device,
// by its PCI address; empty where the kernel has no such controller (it comes with
// 6.14), or does not know the device.
func (t Tree) DmemRegion(pci string) string {
	text, _ := t.Text("sys", "fs", "cgroup", "dmem.capacity")
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 2 && strings.HasPrefix(fields[0], "drm/"+pci+"/") {
			return fields[0]
		}
	}
	return ""
}

// DmemCapacity is how much memory the controller knows a device to have, in bytes; -1
// is absent.
func (t Tree) DmemCapacity(pci string) int64 {
	text, _ := t.Text("sys", "fs", "cgroup", "dmem.capacity")
	sum := int64(-1)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 2 || !strings.HasPrefix(fields[0], "drm/"+pci+"/") {
			continue
		}
		if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil && n > 0 {
			sum = max(0, sum) + n
		}
	}
	return sum
}
