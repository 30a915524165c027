// SPDX-License-Identifier: MPL-2.0

package place

import (
	"encoding/binary"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// FuzzSnapshot builds a node, a usage and a request out of arbitrary numbers:
// whatever they are, they are refused with an error or keep the books.
func FuzzSnapshot(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x10\x00\x20\x00\x04\x00\x00\x10\x00\x20\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c"))
	f.Fuzz(func(t *testing.T, data []byte) {
		number := func() int64 {
			var b [2]byte
			data = data[copy(b[:], data):]
			return int64(int16(binary.LittleEndian.Uint16(b[:])))
		}
		n := Node{ID: "n", CPUMHz: number(), MemoryMiB: number()}
		for i := range number() & 7 {
			n.GPUs = append(n.GPUs, GPU{
				ID: string(rune('a' + i)), Mode: []gpu.Mode{gpu.ModeWhole, gpu.ModeSlice, gpu.ModeShared, "odd"}[number()&3],
				MemoryMiB: number(), SliceMiB: number(), Slices: number(), Replicas: number(), NUMA: int(number()),
				Peers: []int{int(number() & 7)}, Unhealthy: number()&1 == 1, MeasuredMilli: number(), MeasuredMemoryMiB: number(), SurplusMilli: number() & 511,
			})
		}
		s := NewSnapshot()
		if s.AddNode(n) != nil {
			return
		}
		p := NewPlanner(s, PolicyBalanced, DefaultWeights())
		r := Request{
			ID: "r", CPUMHz: number(), MemoryMiB: number(), GPUs: int(number()), Whole: number()&1 == 1, Shared: number()&1 == 1,
			ShareMilli: number(), MemoryMiBPerGPU: number(), MinMemoryMiB: number(), Close: number()&1 == 1,
		}
		u := Usage{ID: "u", NodeID: "n", CPUMHz: number(), MemoryMiB: number(), Takes: []Take{{GPU: int(number()), Milli: number(), Slices: number(), Replicas: number()}}}
		if number()&1 == 1 {
			_ = s.Observe(u) // an error is as good as the usage
		}
		pl, err := p.Place(&r)
		if err == nil {
			err = s.Apply(pl.Usage)
			if err != nil {
				t.Fatalf("a placement cannot be booked: %v", err)
			}
		}
	})
}
