// SPDX-License-Identifier: MPL-2.0

package telemetry

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// Where the driver does not say what it keeps, all that is used is used.
func TestMemoryInUseWithoutWhatTheDriverKeeps(t *testing.T) {
	for name, tc := range map[string]struct{ used, total, reserved, wantUsed, wantFree int64 }{
		"all is told":          {10503, 81559, 503, 10000, 71056},
		"no reserve is told":   {10503, 81559, hardware.Absent, 10503, 71056},
		"nothing is used":      {503, 81559, 503, 0, 81056},
		"it is less than kept": {100, 81559, 503, 0, 81459},
		"no use is told":       {hardware.Absent, 81559, 503, hardware.Absent, hardware.Absent},
		"no size is told":      {10503, hardware.Absent, 503, 10000, hardware.Absent},
	} {
		r := hardware.Reading{MemoryUsedMiB: tc.used, MemoryTotalMiB: tc.total, MemoryReservedMiB: tc.reserved}
		if used, free := usedMiB(r), freeMiB(r); used != tc.wantUsed || free != tc.wantFree {
			t.Errorf("%s: %d used and %d free, want %d and %d", name, used, free, tc.wantUsed, tc.wantFree)
		}
	}
}

func TestActivityIsInPercent(t *testing.T) {
	s := deviceStats(hardware.Reading{Activity: hardware.Activity{SMMilli: 270, TensorMilli: 280, DRAMMilli: 290}})
	for name, want := range map[string]int64{statSM: 27, statTensor: 28, statDRAM: 29} {
		if got := s[name]; got == nil || *got.IntNumeratorVal != want {
			t.Errorf("%s is %v, want %d", name, got, want)
		}
	}
}
