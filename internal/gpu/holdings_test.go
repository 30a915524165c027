// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"slices"
	"strings"
	"testing"
)

// holdingsOfADevice are all that a task can hold of a device with three slices.
func holdingsOfADevice(uuid string) []Holding {
	all := []Holding{{UUID: uuid, Mode: ModeWhole}}
	for set := 1; set < 8; set++ {
		h := Holding{UUID: uuid, Mode: ModeSlice}
		for n := range 3 {
			if set&(1<<n) != 0 {
				h.Slices = append(h.Slices, n)
			}
		}
		all = append(all, h)
	}
	return all
}

// cells are what a holding covers, by device and slice.
func cells(h Holding) map[string]bool {
	numbers := h.Slices
	if len(numbers) == 0 {
		numbers = []int{0, 1, 2}
	}
	covered := map[string]bool{}
	for _, n := range numbers {
		covered[SliceID{h.UUID, n}.String()] = true
	}
	return covered
}

// Two tasks never use the same part of a device: checked for everything that two tasks
// can hold of two devices with three slices, in whatever place of their holdings it
// stands.
func TestNoPartOfADeviceIsHeldTwice(t *testing.T) {
	all := append(holdingsOfADevice(uuidA), holdingsOfADevice(uuidB)...)
	elsewhere := Holding{UUID: "GPU-elsewhere", Mode: ModeSlice, Slices: []int{7}}
	apart := Holding{UUID: "GPU-elsewhere", Mode: ModeSlice, Slices: []int{8}}
	for _, mine := range all {
		for _, theirs := range all {
			shared := false
			for cell := range cells(theirs) {
				shared = shared || cells(mine)[cell]
			}
			for _, wanted := range [][]Holding{{mine}, {elsewhere, mine}, {mine, elsewhere}} {
				for _, held := range [][]Holding{{theirs}, {apart, theirs}, {theirs, apart}} {
					err := CheckSlices(Lease{ID: "a", Holdings: wanted}, []Lease{{ID: "b", Task: "other", AllocID: "alloc", Phase: PhaseRunning, Holdings: held}})
					if (err != nil) != shared {
						t.Fatalf("%v beside %v: %v", wanted, held, err)
					}
					if err != nil && (!strings.Contains(err.Error(), mine.UUID) || !strings.Contains(err.Error(), "other")) {
						t.Fatalf("the error names neither the GPU nor the task: %v", err)
					}
				}
			}
		}
	}
}

// What counts against a task are the live leases of others, in every position of the
// list.
func TestOnlyLiveLeasesOfOthersCount(t *testing.T) {
	on := func(id string, phase Phase) Lease {
		return Lease{ID: id, Phase: phase, Holdings: []Holding{{UUID: uuidA, Mode: ModeWhole, Share: Share{GuaranteeMilli: 600}}}}
	}
	for name, tc := range map[string]struct {
		lease  Lease
		counts bool
	}{
		"starting":             {on("b", PhaseStarting), true},
		"running":              {on("b", PhaseRunning), true},
		"ended":                {on("b", PhaseEnded), false},
		"its own, running":     {on("a", PhaseRunning), false},
		"its own, ended":       {on("a", PhaseEnded), false},
		"another's, elsewhere": {Lease{ID: "b", Phase: PhaseRunning, Holdings: []Holding{{UUID: uuidB, Share: Share{GuaranteeMilli: 600}}}}, false},
	} {
		ended := on("c", PhaseEnded)
		for _, leases := range [][]Lease{{tc.lease}, {ended, tc.lease}, {tc.lease, ended}} {
			if err := CheckSlices(on("a", PhaseStarting), leases); (err != nil) != tc.counts {
				t.Errorf("%s: slices: %v", name, err)
			}
			if err := CheckGuarantees(on("a", PhaseStarting), leases); (err != nil) != tc.counts {
				t.Errorf("%s: guarantees: %v", name, err)
			}
		}
	}
}

// The sum of all guarantees decides, however they are spread over tasks and devices.
func TestGuaranteesAddUpPerDevice(t *testing.T) {
	amounts := []int64{0, 1, 499, 500, 501, 1000}
	for _, wanted := range amounts {
		for _, first := range amounts {
			for _, second := range amounts {
				if first+second > MilliPerGPU {
					continue // cannot have come about
				}
				holding := func(uuid string, milli int64) Holding {
					return Holding{UUID: uuid, Share: Share{GuaranteeMilli: milli}}
				}
				leases := []Lease{
					{ID: "b", Phase: PhaseRunning, Holdings: []Holding{holding(uuidB, 1000), holding(uuidA, first)}},
					{ID: "c", Phase: PhaseRunning, Holdings: []Holding{holding(uuidA, second)}},
				}
				err := CheckGuarantees(Lease{ID: "a", Holdings: []Holding{holding(uuidB, 0), holding(uuidA, wanted)}}, leases)
				if fits := first+second+wanted <= MilliPerGPU; (err == nil) != fits {
					t.Fatalf("%d beside %d and %d: %v", wanted, first, second, err)
				}
			}
		}
	}
}

// Devices are merged only where all blocks mean the same by them.
func TestMergeDevicesRefusesWhatDoesNotGoTogether(t *testing.T) {
	device := func(mode Mode, of int, numbers ...int) ReservedDevice {
		return ReservedDevice{UUID: uuidA, Mode: mode, Of: of, Slices: numbers}
	}
	for name, tc := range map[string]struct {
		a, b ReservedDevice
		ok   bool
	}{
		"slices beside slices":          {device(ModeSlice, 4, 0), device(ModeSlice, 4, 1), true},
		"replicas beside replicas":      {device(ModeShared, 4, 3), device(ModeShared, 4, 1), true},
		"slices beside replicas":        {device(ModeSlice, 4, 0), device(ModeShared, 4, 1), false},
		"slices of another number":      {device(ModeSlice, 4, 0), device(ModeSlice, 5, 1), false},
		"a whole beside a whole":        {device(ModeWhole, 0), device(ModeWhole, 0), false},
		"slices beside a whole":         {device(ModeSlice, 4, 0), device(ModeWhole, 0), false},
		"the same slice":                {device(ModeSlice, 4, 1, 2), device(ModeSlice, 4, 0, 2), false},
		"the same replica":              {device(ModeShared, 4, 1), device(ModeShared, 4, 1), false},
		"a whole beside another device": {device(ModeWhole, 0), ReservedDevice{UUID: uuidB, Mode: ModeWhole}, true},
	} {
		for _, pair := range [][]ReservedDevice{{tc.a, tc.b}, {tc.b, tc.a}} {
			for _, blocks := range [][]Reservation{{{Devices: pair[:1]}, {Devices: pair[1:]}}, {{Devices: pair}}} {
				merged, err := MergeDevices(blocks)
				if (err == nil) != tc.ok {
					t.Errorf("%s: %v, %v", name, merged, err)
				}
				if !slices.IsSortedFunc(merged, func(a, b ReservedDevice) int { return strings.Compare(a.UUID, b.UUID) }) {
					t.Errorf("%s: the order is %v", name, merged)
				}
			}
		}
	}
}

// A reservation is read if everything in it is in its range, and only then.
func TestReservedDevicesAreCheckedAtEveryBound(t *testing.T) {
	good := ReservedDevice{UUID: uuidA, Mode: ModeSlice, Slices: []int{0, 2, 3}, Of: 4, MemoryMiB: 3072, Milli: 750, BurstMilli: 1000}
	for name, tc := range map[string]struct {
		change func(*ReservedDevice)
		ok     bool
	}{
		"as it is":             {func(*ReservedDevice) {}, true},
		"replicas":             {func(d *ReservedDevice) { d.Mode = ModeShared }, true},
		"a whole":              {func(d *ReservedDevice) { d.Mode, d.Slices, d.Of = ModeWhole, nil, 0 }, true},
		"a whole with slices":  {func(d *ReservedDevice) { d.Mode = ModeWhole }, false},
		"no UUID":              {func(d *ReservedDevice) { d.UUID = "" }, false},
		"MIG as a mode":        {func(d *ReservedDevice) { d.Mode = ModeMIG }, false},
		"no slices":            {func(d *ReservedDevice) { d.Slices = nil }, false},
		"a slice below zero":   {func(d *ReservedDevice) { d.Slices = []int{-1, 2} }, false},
		"not ascending":        {func(d *ReservedDevice) { d.Slices = []int{2, 0} }, false},
		"one slice twice":      {func(d *ReservedDevice) { d.Slices = []int{0, 2, 2} }, false},
		"beyond the last":      {func(d *ReservedDevice) { d.Of = 3 }, false},
		"no memory":            {func(d *ReservedDevice) { d.MemoryMiB = 0 }, true},
		"memory below zero":    {func(d *ReservedDevice) { d.MemoryMiB = -1 }, false},
		"no compute":           {func(d *ReservedDevice) { d.Milli = 0 }, true},
		"compute below zero":   {func(d *ReservedDevice) { d.Milli = -1 }, false},
		"all compute":          {func(d *ReservedDevice) { d.Milli = 1000 }, true},
		"more than all":        {func(d *ReservedDevice) { d.Milli = 1001 }, false},
		"no burst":             {func(d *ReservedDevice) { d.BurstMilli = 0 }, true},
		"burst below zero":     {func(d *ReservedDevice) { d.BurstMilli = -1 }, false},
		"burst beyond the GPU": {func(d *ReservedDevice) { d.BurstMilli = 1001 }, false},
	} {
		d := good
		tc.change(&d)
		value, err := Reservation{Version: 1, Devices: []ReservedDevice{{UUID: uuidB, Mode: ModeWhole}, d}}.EnvValue()
		if (err == nil) != tc.ok || (value != "") != tc.ok {
			t.Errorf("%s: %q, %v", name, value, err)
		}
	}
	for version, ok := range map[int]bool{-1: false, 0: false, ReservationVersion: true, ReservationVersion + 1: false} {
		if _, err := (Reservation{Version: version, Devices: []ReservedDevice{good}}).EnvValue(); (err == nil) != ok {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// The key names the first slice, and slice 0 for a whole device.
func TestKeysNameTheFirstSlice(t *testing.T) {
	for want, d := range map[string]ReservedDevice{
		"NOMAD_GPU_1a2b3c4d_0": {UUID: uuidA, Mode: ModeWhole},
		"NOMAD_GPU_1a2b3c4d_9": {UUID: uuidA, Mode: ModeSlice, Slices: []int{9}},
		"NOMAD_GPU_5e6f7a8b_3": {UUID: uuidB, Mode: ModeSlice, Slices: []int{3, 4}},
	} {
		r := Reservation{Devices: []ReservedDevice{d, {UUID: "GPU-other"}}}
		if got := r.EnvKey(); got != want || !IsReservationKey(got) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := (Reservation{}).EnvKey(); got != "" {
		t.Errorf("a reservation of nothing has the key %s", got)
	}
}
