// SPDX-License-Identifier: MPL-2.0

package amd

import (
	"encoding/binary"
	"testing"
)

// How busy each partition is stands at another place in every revision; what is cut off, of
// another revision, or not of this GPU, is absent and never zero.
func TestBusyPartitionsAreReadFromEachRevision(t *testing.T) {
	table := func(revision byte, size, partitions, first, each int) []byte {
		b := make([]byte, size)
		for i := first; i < first+8*each; i++ {
			b[i] = 0xff
		}
		binary.NativeEndian.PutUint16(b, uint16(size))
		b[2], b[3] = 1, revision
		binary.NativeEndian.PutUint16(b[partitions:], 4)
		for part := range 4 {
			for n, busy := range []uint32{uint32(10 * part), uint32(10*part + 20)} {
				binary.NativeEndian.PutUint32(b[first+part*each+4*n:], busy)
			}
		}
		return b
	}
	for revision, b := range map[byte][]byte{6: table(6, 1664, 306, 312, 168), 7: table(7, 2208, 338, 344, 232), 8: table(8, 3360, 338, 344, 376)} {
		for part, want := range []int64{10, 20, 30, 40, -1, -1} {
			if got := partitionBusy(b, part, 4); got != want {
				t.Errorf("revision %d, partition %d: %d, want %d", revision, part, got, want)
			}
		}
		if got := partitionBusy(b, 0, 3); got != -1 {
			t.Errorf("revision %d, where a partition is lost: %d", revision, got)
		}
		if got := partitionBusy(b[:len(b)-1], 0, 4); got != -1 {
			t.Errorf("revision %d, cut off: %d", revision, got)
		}
		for _, spoil := range []int{0, 2, 3} {
			other := append([]byte(nil), b...)
			other[spoil] += 9
			if got := partitionBusy(other, 0, 4); got != -1 {
				t.Errorf("revision %d with another byte %d: %d", revision, spoil, got)
			}
		}
	}
	if got := partitionBusy(nil, 0, 4); got != -1 {
		t.Errorf("nothing: %d", got)
	}
}
