// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// benchUnits are eight GPUs of 79 slices.
func benchUnits(b *testing.B) (*config.Config, *registry.Registry, hardware.Machine, []*Unit) {
	c, l, m := testConfig(b, sliced), testRegistry(), testMachine(8)
	units := Units(c, l, m, quiet())
	for _, u := range units {
		u.MPS = &gpu.MPSState{PipeDir: "/p", Ready: true}
	}
	return c, l, m, units
}

// BenchmarkFingerprint is a pass of the reconciler without asking the hardware:
// plan, groups and comparison with what was published.
func BenchmarkFingerprint(b *testing.B) {
	c, l, m, units := benchUnits(b)
	published := Groups(TraitsOf(m, units), units)
	b.ReportAllocs()
	for b.Loop() {
		units := Units(c, l, m, quiet())
		for _, u := range units {
			u.MPS = &gpu.MPSState{PipeDir: "/p", Ready: true}
		}
		if !SameGroups(published, Groups(TraitsOf(m, units), units)) {
			b.Fatal("the groups differ")
		}
	}
}

// BenchmarkReserve hands eight slices out and reports the slowest hundredth.
func BenchmarkReserve(b *testing.B) {
	_, _, _, units := benchUnits(b)
	c := NewIndex(units)
	ids := sliceIDs(testUUID(3), 8, 9, 10, 11, 12, 13, 14, 15)
	var took []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		if _, _, err := c.Reserve(ids); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}
