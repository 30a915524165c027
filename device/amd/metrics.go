// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"encoding/binary"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// metricsTable is where a revision of the kernel's gpu_metrics (format 1) tells of each
// partition how busy it is: a number per compute chiplet (XCC) in percent. Revisions are
// not extensions of each other, and other ones than these do not tell, or not in a form
// that a file has.
type metricsTable struct {
	size       int // of the whole
	partitions int // where their number is
	first      int // where the first partition's numbers are
	each       int // bytes to the next
}

var metricsTables = map[byte]metricsTable{
	6: {1664, 306, 312, 168},
	7: {2208, 338, 344, 232},
	8: {3360, 338, 344, 376},
}

// chiplets is for how many a partition's numbers have room. Those that it does not have are
// all ones.
const chiplets = 8

// partitionBusy is how busy one of parts partitions is, in percent over its chiplets, from
// the table that the kernel gives; absent where it does not tell, or of another number.
func partitionBusy(table []byte, part, parts int) int64 {
	if len(table) < 4 || table[2] != 1 {
		return hardware.Absent
	}
	t, known := metricsTables[table[3]]
	if !known || len(table) < t.size || int(binary.NativeEndian.Uint16(table)) != t.size || int(binary.NativeEndian.Uint16(table[t.partitions:])) != parts || part >= min(parts, chiplets) {
		return hardware.Absent
	}
	sum, have := int64(0), int64(0)
	for n := range chiplets {
		busy := binary.NativeEndian.Uint32(table[t.first+part*t.each+4*n:])
		if busy <= 100 {
			sum, have = sum+int64(busy), have+1
		}
	}
	if have == 0 {
		return hardware.Absent
	}
	return sum / have
}
