// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

func codes(problems []hardware.Problem) string {
	var all []string
	for _, p := range problems {
		if p.Message == "" || p.Action == "" {
			all = append(all, "(no help)")
		}
		all = append(all, p.Code)
	}
	return strings.Join(all, " ")
}

// What is wrong with the memory is told by the remapping of rows, and on GPUs that have
// none by retired pages and counters.
func TestMemoryHealth(t *testing.T) {
	for name, tc := range map[string]struct {
		pending, failed bool
		remapping       nvml.Return
		retiring        nvml.EnableState
		retired         nvml.Return
		count           uint64
		counted         nvml.Return
		want            string
	}{
		"well":                        {want: ""},
		"pending":                     {pending: true, want: "ecc-remap-pending"},
		"failed":                      {failed: true, want: "ecc-remap-failed"},
		"failed and pending":          {pending: true, failed: true, want: "ecc-remap-failed"},
		"a count where it can remap":  {count: 5, want: ""},
		"no remapping, well":          {pending: true, failed: true, remapping: nvml.ERROR_NOT_SUPPORTED, want: ""},
		"a page to retire":            {remapping: nvml.ERROR_NOT_SUPPORTED, retiring: nvml.FEATURE_ENABLED, count: 5, want: "ecc-retirement-pending"},
		"pages are not told":          {remapping: nvml.ERROR_NOT_SUPPORTED, retiring: nvml.FEATURE_ENABLED, retired: nvml.ERROR_NOT_SUPPORTED, want: ""},
		"errors":                      {remapping: nvml.ERROR_NOT_SUPPORTED, count: 1, want: "ecc-uncorrected"},
		"errors that are not counted": {remapping: nvml.ERROR_NOT_SUPPORTED, count: 1, counted: nvml.ERROR_NOT_SUPPORTED, want: ""},
	} {
		d := sim.Unsupported(&mock.Device{
			GetRemappedRowsFunc:              func() (int, int, bool, bool, nvml.Return) { return 1, 1, tc.pending, tc.failed, tc.remapping },
			GetRetiredPagesPendingStatusFunc: func() (nvml.EnableState, nvml.Return) { return tc.retiring, tc.retired },
			GetTotalEccErrorsFunc: func(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
				if kind != nvml.MEMORY_ERROR_TYPE_UNCORRECTED || counter != nvml.VOLATILE_ECC {
					return 9, nvml.SUCCESS // corrected ones, and those of all time, are no fault
				}
				return tc.count, tc.counted
			},
		})
		if got := codes(memoryHealth(d)); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// A recovery action is a fault by its number, however wide the driver writes it.
func TestRecoveryActions(t *testing.T) {
	wants := []string{"", "recovery-gpu-reset", "recovery-node-reboot", "recovery-drain-p2p", "recovery-drain-and-reset", "recovery-imex-domain",
		"recovery-bus-reset", "recovery-system-reboot", "recovery-unknown", "recovery-unknown"}
	for _, kind := range []nvml.ValueType{nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG} {
		for action, want := range wants {
			d := sim.Unsupported(&mock.Device{GetRemappedRowsFunc: func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.SUCCESS },
				GetFieldValuesFunc: func(values []nvml.FieldValue) nvml.Return {
					values[0].ValueType = uint32(kind)
					if kind == nvml.VALUE_TYPE_UNSIGNED_INT {
						binary.NativeEndian.PutUint32(values[0].Value[4:], 77) // not part of the number
						binary.NativeEndian.PutUint32(values[0].Value[:], uint32(action))
					} else {
						binary.NativeEndian.PutUint64(values[0].Value[:], uint64(action))
					}
					return nvml.SUCCESS
				}})
			if got := codes(health(d)); got != want {
				t.Errorf("action %d: %q, want %q", action, got, want)
			}
		}
	}
	for _, tc := range []struct{ call, field nvml.Return }{{nvml.ERROR_UNKNOWN, nvml.SUCCESS}, {nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED}} {
		d := sim.Unsupported(&mock.Device{GetFieldValuesFunc: func(values []nvml.FieldValue) nvml.Return {
			values[0].Value[0], values[0].NvmlReturn = 1, uint32(tc.field)
			return tc.call
		}})
		if action, known := recoveryAction(d); known || action != 0 {
			t.Errorf("an action that is not told is %d", action)
		}
	}
}

// Only a fabric that has let the GPU in without an error is well.
func TestFabricStates(t *testing.T) {
	for name, tc := range map[string]struct {
		state  uint8
		status nvml.Return
		ret    nvml.Return
		want   string
	}{
		"no fabric":       {nvml.GPU_FABRIC_STATE_NOT_SUPPORTED, nvml.SUCCESS, nvml.SUCCESS, ""},
		"not started":     {nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.SUCCESS, nvml.SUCCESS, "fabric-not-ready"},
		"in progress":     {nvml.GPU_FABRIC_STATE_IN_PROGRESS, nvml.SUCCESS, nvml.SUCCESS, "fabric-not-ready"},
		"completed":       {nvml.GPU_FABRIC_STATE_COMPLETED, nvml.SUCCESS, nvml.SUCCESS, ""},
		"completed badly": {nvml.GPU_FABRIC_STATE_COMPLETED, nvml.ERROR_MEMORY, nvml.SUCCESS, "fabric-failed"},
		"not told":        {nvml.GPU_FABRIC_STATE_NOT_STARTED, nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, ""},
	} {
		d := sim.Unsupported(&mock.Device{GetGpuFabricInfoFunc: func() (nvml.GpuFabricInfo, nvml.Return) {
			return nvml.GpuFabricInfo{State: tc.state, Status: uint32(tc.status)}, tc.ret
		}})
		if got := codes(everything().fabric(d)); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// What is said of a driver that does not answer depends on why.
func TestWhyADriverIsAbsent(t *testing.T) {
	for name, tc := range map[string]struct {
		err       error
		code      string
		outdated  bool
		tentative bool
	}{
		"no library":     {absent(nvml.ERROR_LIBRARY_NOT_FOUND), "nvml-absent", false, false},
		"not loaded":     {fmt.Errorf("survey: %w", absent(nvml.ERROR_DRIVER_NOT_LOADED)), "nvml-absent", false, false},
		"upgraded":       {fmt.Errorf("survey: %w", absent(nvml.ERROR_LIB_RM_VERSION_MISMATCH)), "driver-mismatch", true, false},
		"late":           {fmt.Errorf("survey: %w", guard.ErrHangs), "nvml-timeout", false, true},
		"something else": {errors.New("no"), "nvml-absent", false, false},
	} {
		d := everything().Absence(tc.err)
		if d.Absent == nil || codes([]hardware.Problem{*d.Absent}) != tc.code || d.Outdated != tc.outdated || d.Absent.Tentative != tc.tentative {
			t.Errorf("%s: %+v", name, d)
		}
	}
	if err := absent(nvml.ERROR_DRIVER_NOT_LOADED); !errors.Is(err, hardware.ErrAbsent) || !strings.Contains(err.Error(), "the NVIDIA driver is not loaded") {
		t.Errorf("no driver is %v", err)
	}
	if errors.Is(absent(nvml.ERROR_LIB_RM_VERSION_MISMATCH), hardware.ErrAbsent) {
		t.Error("a driver of another version is taken for none")
	}
	if met := problemOf(nvml.ERROR_LIB_RM_VERSION_MISMATCH, "GPU at index 0"); met != mismatched() {
		t.Errorf("an upgrade that is met in mid-survey is %+v", met)
	}
	if got := describe(nvml.Return(4711)); got != "NVML return code 4711" {
		t.Errorf("an unknown code is %q", got)
	}
}

// What a device did ten minutes ago says nothing of the present.
func TestOldSamplesAreNoMeasurement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, freed := 0, 0
		lib := sim.Unsupported(&mock.Interface{
			GpmSampleAllocFunc: func() (nvml.GpmSample, nvml.Return) {
				made++
				return &mock.GpmSample{FreeFunc: func() nvml.Return { freed++; return nvml.SUCCESS }}, nvml.SUCCESS
			},
			GpmMetricsGetFunc: func(request *nvml.GpmMetricsGetType) nvml.Return {
				for n := range request.NumMetrics {
					request.Metrics[n].Value = 50
				}
				return nvml.SUCCESS
			},
		})
		take := func(nvml.GpmSample) nvml.Return { return nvml.SUCCESS }
		s := &sampler{latest: hardware.NoActivity()}
		for step, tc := range []struct {
			after time.Duration
			told  bool
			made  int
		}{
			{0, false, 1},
			{samplePause - 1, false, 1}, // too early: what was told before
			{1, true, 2},
			{samplePause / 2, true, 2},
			{oldestSample - samplePause/2, true, 3}, // as old as one may be
			{oldestSample + 1, false, 4},
			{samplePause, true, 5},
		} {
			time.Sleep(tc.after)
			got := s.measure(lib, take)
			if (got != hardware.NoActivity()) != tc.told || made != tc.made || freed != made-1 {
				t.Errorf("step %d: %+v with %d samples, of which %d were let go of", step, got, made, freed)
			}
			all := hardware.Activity{GraphicsMilli: 500, SMMilli: 500, TensorMilli: 500, DRAMMilli: 500, PCIeSentBytes: 50 << 20, PCIeReceivedBytes: 50 << 20}
			if tc.told && got != all {
				t.Errorf("step %d: %+v", step, got)
			}
		}
		// A sample that cannot be taken is let go of, and says nothing.
		time.Sleep(samplePause)
		if got := s.measure(lib, func(nvml.GpmSample) nvml.Return { return nvml.ERROR_UNKNOWN }); got != hardware.NoActivity() || freed != made-1 {
			t.Errorf("no sample tells %+v; %d of %d were let go of", got, freed, made)
		}
		// Samplers of devices that no one asks for are dropped after a while.
		all := samplers{all: map[string]*sampler{}}
		first := all.of("GPU-1")
		first.measure(lib, take)
		time.Sleep(oldestSample - 1)
		if all.of("GPU-2"); len(all.all) != 2 || all.of("GPU-1") != first {
			t.Errorf("there are %d", len(all.all))
		}
		time.Sleep(time.Nanosecond)
		if all.of("GPU-2"); len(all.all) != 1 {
			t.Errorf("there are %d", len(all.all))
		}
		all.free()
		if len(all.all) != 0 || freed != made-1 { // the one is that of s
			t.Errorf("there are %d, and %d of %d samples were let go of", len(all.all), freed, made)
		}
	})
}

// Values that make no sense are left out, and shares of a whole do not exceed it.
func TestValuesOfSamples(t *testing.T) {
	for name, tc := range map[string]struct {
		value float64
		ret   nvml.Return
		want  int64
	}{
		"a share":      {12.34, nvml.SUCCESS, 123},
		"rounded up":   {12.35, nvml.SUCCESS, 124},
		"nothing":      {0, nvml.SUCCESS, 0},
		"all":          {100, nvml.SUCCESS, 1000},
		"beyond all":   {100.5, nvml.SUCCESS, 1000},
		"below zero":   {-0.1, nvml.SUCCESS, hardware.Absent},
		"not a number": {nan(), nvml.SUCCESS, hardware.Absent},
		"an error":     {50, nvml.ERROR_NOT_SUPPORTED, hardware.Absent},
	} {
		lib := sim.Unsupported(&mock.Interface{GpmMetricsGetFunc: func(request *nvml.GpmMetricsGetType) nvml.Return {
			for n := range request.NumMetrics {
				request.Metrics[n].NvmlReturn, request.Metrics[n].Value = uint32(nvml.ERROR_NOT_SUPPORTED), 7
				if request.Metrics[n].MetricId == uint32(nvml.GPM_METRIC_ANY_TENSOR_UTIL) {
					request.Metrics[n].NvmlReturn, request.Metrics[n].Value = uint32(tc.ret), tc.value
				}
			}
			return nvml.SUCCESS
		}})
		want := hardware.NoActivity()
		want.TensorMilli = tc.want
		if got := compare(lib, nil, nil); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

func nan() float64 { zero := 0.0; return zero / zero }
