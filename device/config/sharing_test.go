// SPDX-License-Identifier: MPL-2.0

package config

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Slices are counted from the memory left when the driver, or the headroom if that is
// more, has its part.
func TestSlicesLeaveTheDriverItsMemory(t *testing.T) {
	for _, tc := range []struct {
		memory, reserved, headroom, slice int64
		want                              int
	}{
		{81559, 0, 512, 1024, 79},
		{81559, 503, 512, 1024, 79},
		{81559, 512, 512, 1024, 79},
		{81559, 700, 512, 1024, 78}, // 80859 MiB are left: not quite 79 slices
		{81559, 663, 512, 1024, 79}, // 80896 MiB are left: 79 slices to the MiB
		{81559, 664, 512, 1024, 78},
		{122502, 12250, 512, 1024, 107},
		{1536, 0, 512, 1024, 1},
		{1535, 0, 512, 1024, 0},
		{100, 500, 512, 1024, 0},
		{0, 0, 512, 1024, 0},
	} {
		o := Sharing{Mode: gpu.ModeSlice, HeadroomMiB: tc.headroom, SliceMiB: tc.slice, Replicas: 4}
		if got := o.Slices(tc.memory, tc.reserved); got != tc.want {
			t.Errorf("%d MiB, %d reserved, headroom %d: %d slices, want %d", tc.memory, tc.reserved, tc.headroom, got, tc.want)
		}
	}
	for mode, want := range map[gpu.Mode]int{gpu.ModeShared: 4, gpu.ModeWhole: 0, gpu.ModeMIG: 0, gpu.ModePartition: 0} {
		if got := (Sharing{Mode: mode, SliceMiB: 1024, Replicas: 4}).Slices(81559, 0); got != want {
			t.Errorf("mode %s: %d instances, want %d", mode, got, want)
		}
	}
}

// A change of the configuration waits for an empty device if, and only if, a running
// task relies on what changes.
func TestWhatChangesUnderTasks(t *testing.T) {
	base := Sharing{Mode: gpu.ModeSlice, Mechanism: gpu.SharingMPS, SliceMiB: 1024, HeadroomMiB: 512, Replicas: 4, Timeslice: "short", BurstMilli: 1000}
	shared := base
	shared.Mode, shared.Mechanism = gpu.ModeShared, gpu.SharingTimeslice
	whole := base
	whole.Mode, whole.Mechanism = gpu.ModeWhole, gpu.SharingNone
	changes := map[string]func(*Sharing){
		"mode": func(o *Sharing) { o.Mode = gpu.ModeMIG }, "mechanism": func(o *Sharing) { o.Mechanism = gpu.SharingHAMi },
		"slice": func(o *Sharing) { o.SliceMiB = 2048 }, "headroom": func(o *Sharing) { o.HeadroomMiB = 1024 },
		"replicas": func(o *Sharing) { o.Replicas = 5 }, "timeslice": func(o *Sharing) { o.Timeslice = "long" },
		"burst": func(o *Sharing) { o.BurstMilli = 500 }, "who chose": func(o *Sharing) { o.chosen = true },
	}
	waits := map[string]map[string]bool{
		"slices":   {"mode": true, "mechanism": true, "slice": true, "headroom": true},
		"replicas": {"mode": true, "mechanism": true, "replicas": true},
		"whole":    {"mode": true, "mechanism": true},
	}
	for name, from := range map[string]Sharing{"slices": base, "replicas": shared, "whole": whole} {
		for what, change := range changes {
			to := from
			change(&to)
			if got := !from.Same(to); got != waits[name][what] {
				t.Errorf("%s: a change of %s waits: %v", name, what, got)
			}
		}
	}
}
