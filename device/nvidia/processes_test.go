// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/nomad-gpu/nomad-gpu/device/guard"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// NVML's lists overlap: a program is listed once, as an MPS client if it is one, with
// its latest use.
func TestProgramsOfAllLists(t *testing.T) {
	const mib, absent = 1 << 20, hardware.Absent
	at := func(pid uint32, mib uint64) nvml.ProcessInfo {
		return nvml.ProcessInfo{Pid: pid, UsedGpuMemory: mib << 20}
	}
	d := sim.Unsupported(&mock.Device{
		GetMPSComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{at(1, 100), at(2, 200), at(3, 300)}, nvml.SUCCESS
		},
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{at(2, 9), at(4, 400), {Pid: 5, UsedGpuMemory: unknownMemory}}, nvml.SUCCESS
		},
		GetGraphicsRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{at(4, 9), at(6, 600)}, nvml.SUCCESS
		},
		GetProcessUtilizationFunc: func(seen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			return []nvml.ProcessUtilizationSample{
				{Pid: 1, TimeStamp: seen + 5, SmUtil: 0}, // NVML credits the server
				{Pid: 2, TimeStamp: seen + 5, SmUtil: 20},
				{Pid: 4, TimeStamp: seen + 7, SmUtil: 40}, {Pid: 4, TimeStamp: seen + 6, SmUtil: 99}, {Pid: 4, TimeStamp: seen + 7, SmUtil: 41},
			}, nvml.SUCCESS
		},
	})
	want := []hardware.Process{
		{PID: 1, MemoryMiB: 100, MPS: true, Milli: absent}, {PID: 2, MemoryMiB: 200, MPS: true, Milli: 200}, {PID: 3, MemoryMiB: 300, MPS: true, Milli: absent},
		{PID: 4, MemoryMiB: 400, Milli: 410}, {PID: 5, MemoryMiB: absent, Milli: 0}, {PID: 6, MemoryMiB: 600, Milli: 0, Graphics: true},
	}
	got, err := everything().processes(d, "GPU-1")
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v; the programs differ (-want +got):\n%s", err, diff)
	}
	// Without the list of clients no program is known to be one, or not to be one.
	for ret, fails := range map[nvml.Return]bool{nvml.ERROR_NOT_SUPPORTED: false, nvml.ERROR_FUNCTION_NOT_FOUND: false, nvml.ERROR_UNKNOWN: true} {
		d.GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return []nvml.ProcessInfo{at(4, 1)}, ret }
		got, err := everything().processes(d, "GPU-1")
		if (err != nil) != fails || !fails && (len(got) != 4 || got[1].PID != 4 || got[1].MPS || !got[1].MPSUnknown) {
			t.Errorf("%s: %+v, %v", describe(ret), got, err)
		}
	}
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_UNKNOWN }
	if got, err := everything().processes(d, "GPU-1"); err == nil {
		t.Errorf("a list that cannot be read is %+v", got)
	}
}

// The driver keeps samples for minutes: what was seen before, what is older than anything
// that could be said of the present, and what cannot be are no use of now.
func TestUseIsThatSinceTheLastMeasurement(t *testing.T) {
	start := time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	var buffer []nvml.ProcessUtilizationSample
	var asked []time.Duration // before now
	now, ret := start, nvml.SUCCESS
	d := sim.Unsupported(&mock.Device{GetProcessUtilizationFunc: func(seen uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		asked = append(asked, now.Sub(time.UnixMicro(int64(seen))))
		return buffer, ret // also of what was seen: it is not asked to be kind
	}})
	sample := func(pid uint32, seconds float64, percent uint32) {
		buffer = append(buffer, nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: micros(at(seconds)), SmUtil: percent})
	}
	sample(7, -60, 99)  // of a program that is idle since
	sample(8, -2, 4000) // seen in the field
	sample(9, -2, 30)
	u := &use{}
	for _, step := range []struct {
		what   string
		at     float64
		then   func()
		want   map[uint32]int64
		before time.Duration // how old the oldest sample is that was asked for; 0 for none
	}{
		{what: "the first", at: 0, want: map[uint32]int64{8: 1000, 9: 300}, before: useWindow},
		{what: "at once again", at: 0.9, then: func() { sample(9, 0.8, 50) }, want: map[uint32]int64{8: 1000, 9: 300}},
		{what: "the next", at: 5, want: map[uint32]int64{9: 500}, before: 7 * time.Second},
		{what: "all are idle", at: 10, want: map[uint32]int64{}, before: 9200 * time.Millisecond},
		{what: "nothing is newer", at: 15, then: func() { ret = nvml.ERROR_NOT_FOUND }, want: map[uint32]int64{}, before: useWindow},
		{what: "it does not tell", at: 20, then: func() { ret = nvml.ERROR_NOT_SUPPORTED }, before: useWindow},
		{what: "the clock was set back", at: -3600, then: func() { ret = nvml.SUCCESS; buffer = nil; sample(9, -3601, 20) }, want: map[uint32]int64{9: 200}, before: useWindow},
		{what: "and goes on", at: -3595, then: func() { buffer = nil; sample(9, -3596, 10) }, want: map[uint32]int64{9: 100}, before: useWindow},
	} {
		asked, now = nil, at(step.at)
		if step.then != nil {
			step.then()
		}
		got := u.measure(d, now)
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
		if want := []time.Duration{step.before}; step.before == 0 && len(asked) > 0 || step.before > 0 && !slices.Equal(asked, want) {
			t.Errorf("%s: asked for samples of the last %v, want %v", step.what, asked, want)
		}
	}
}

// An event says which instance it concerns, if it concerns one, and what it means.
func TestEventsAreTranslated(t *testing.T) {
	d := sim.Unsupported(&mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS }})
	nameless := sim.Unsupported(&mock.Device{GetUUIDFunc: func() (string, nvml.Return) { return "GPU-2", nvml.ERROR_GPU_IS_LOST }})
	const none = ^uint32(0)
	for _, tc := range []struct {
		data nvml.EventData
		want string
	}{
		{nvml.EventData{Device: d, EventType: nvml.EventTypeXidCriticalError, EventData: 79, GpuInstanceId: none, ComputeInstanceId: none}, "GPU-1 XID 79 of -1/-1: "},
		{nvml.EventData{Device: d, EventType: nvml.EventTypeXidCriticalError, EventData: 13, GpuInstanceId: 0, ComputeInstanceId: 3}, "GPU-1 XID 13 of 0/3: "},
		{nvml.EventData{Device: d, EventType: nvml.EventTypeFatalPoisonError, EventData: 5, GpuInstanceId: none}, "GPU-1 memory poison 0 of -1/0: event-memory-poison"},
		{nvml.EventData{Device: d, EventType: nvml.EventTypeGpuUnavailableError}, "GPU-1 GPU unavailable 0 of 0/0: event-gpu-unavailable"},
		{nvml.EventData{Device: d, EventType: nvml.EventTypeDoubleBitEccError}, "GPU-1 uncorrected ECC error 0 of 0/0: "},
		{nvml.EventData{Device: nameless, EventType: nvml.EventMigConfigChange}, " change of the MIG instances 0 of 0/0: "},
		{nvml.EventData{EventType: 1 << 40}, " event of type 0x10000000000 0 of 0/0: "},
	} {
		e := event(tc.data)
		if got := fmt.Sprintf("%s %s %d of %d/%d: %s", e.UUID, e.Name, e.XID, e.GI, e.CI, e.Problem.Code); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
		if e.Problem.Code != "" && (!e.Problem.Fatal || e.Problem.Action == "") {
			t.Errorf("%+v", e.Problem)
		}
	}
}

// A device is asked for those of our events that it knows, and for XIDs at least.
func TestEventsThatAreAskedFor(t *testing.T) {
	all := uint64(0)
	for _, k := range kinds {
		all |= k.kind
	}
	for name, tc := range map[string]struct {
		supported uint64
		ret       nvml.Return
		want      uint64
	}{
		"all":      {^uint64(0), nvml.SUCCESS, all},
		"XIDs":     {nvml.EventTypeXidCriticalError | nvml.EventTypeClock, nvml.SUCCESS, nvml.EventTypeXidCriticalError},
		"none":     {0, nvml.SUCCESS, 0},
		"not told": {0, nvml.ERROR_NOT_SUPPORTED, nvml.EventTypeXidCriticalError},
	} {
		asked := uint64(1)
		d := sim.Unsupported(&mock.Device{
			GetSupportedEventTypesFunc: func() (uint64, nvml.Return) { return tc.supported, tc.ret },
			RegisterEventsFunc:         func(types uint64, _ nvml.EventSet) nvml.Return { asked = types; return nvml.SUCCESS },
		})
		if ret := register(d, nil); ret != nvml.SUCCESS || asked != tc.want {
			t.Errorf("%s: asked for %#x, want %#x", name, asked, tc.want)
		}
	}
}

// Only a GPU that says so is sampled.
func TestActivityOfWhatCanBeSampled(t *testing.T) {
	for name, tc := range map[string]struct {
		supported uint32
		ret       nvml.Return
		samples   bool
	}{"yes": {1, nvml.SUCCESS, true}, "no": {0, nvml.SUCCESS, false}, "an error": {1, nvml.ERROR_NOT_SUPPORTED, false}} {
		taken := false
		b := &Backend{samplers: samplers{all: map[string]*sampler{}}, lib: sim.Unsupported(&mock.Interface{
			ExtensionsFunc:     func() nvml.ExtendedInterface { return nil },
			GpmSampleAllocFunc: func() (nvml.GpmSample, nvml.Return) { return sim.Unsupported(&mock.GpmSample{}), nvml.SUCCESS },
		})}
		d := sim.Unsupported(&mock.Device{
			GpmQueryDeviceSupportFunc: func() (nvml.GpmSupport, nvml.Return) { return nvml.GpmSupport{IsSupportedDevice: tc.supported}, tc.ret },
			GpmSampleGetFunc:          func(nvml.GpmSample) nvml.Return { taken = true; return nvml.SUCCESS },
		})
		if b.activity(d, "GPU-1"); taken != tc.samples {
			t.Errorf("%s: sampled %v", name, taken)
		}
	}
}

// A MIG instance is sampled through its GPU, if both tell which it is.
func TestActivityOfAMIGInstanceNeedsItsGPU(t *testing.T) {
	for name, tc := range map[string]struct {
		parent, gi nvml.Return
		samples    bool
	}{"both tell": {nvml.SUCCESS, nvml.SUCCESS, true}, "no GPU": {nvml.ERROR_UNKNOWN, nvml.SUCCESS, false}, "no number": {nvml.SUCCESS, nvml.ERROR_UNKNOWN, false}} {
		taken := -1
		b := everything()
		b.samplers = samplers{all: map[string]*sampler{}}
		b.lib.(*mock.Interface).GpmSampleAllocFunc = func() (nvml.GpmSample, nvml.Return) { return sim.Unsupported(&mock.GpmSample{}), nvml.SUCCESS }
		parent := sim.Unsupported(&mock.Device{
			GpmQueryDeviceSupportFunc: func() (nvml.GpmSupport, nvml.Return) { return nvml.GpmSupport{IsSupportedDevice: 1}, nvml.SUCCESS },
			GpmMigSampleGetFunc:       func(gi int, _ nvml.GpmSample) nvml.Return { taken = gi; return nvml.SUCCESS },
		})
		d := sim.Unsupported(&mock.Device{
			IsMigDeviceHandleFunc:                  func() (bool, nvml.Return) { return true, nvml.SUCCESS },
			GetDeviceHandleFromMigDeviceHandleFunc: func() (nvml.Device, nvml.Return) { return parent, tc.parent },
			GetGpuInstanceIdFunc:                   func() (int, nvml.Return) { return 5, tc.gi },
		})
		if b.activity(d, "MIG-1"); (taken == 5) != tc.samples || !tc.samples && taken != -1 {
			t.Errorf("%s: sampled %d", name, taken)
		}
	}
}

// A GPU that does not even say who it is counts as one that is not known.
func TestAGPUThatDoesNotSayWhoItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := everything()
		b.guard = guard.New(time.Second)
		b.lib.(*mock.Interface).DeviceGetHandleByIndexFunc = func(index int) (nvml.Device, nvml.Return) {
			if index == 0 {
				<-release
			}
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		var found hardware.Machine
		var driver hardware.Driver
		b.one(0, &found, &driver)
		b.one(1, &found, &driver)
		if got := codes(driver.Unknown); got != "nvml-timeout gpu-lost" || len(found.GPUs) != 0 {
			t.Errorf("unknown are %q, found %v", got, found.GPUs)
		}
		close(release)
		synctest.Wait()
	})
}

// What is asked of a device that the library does not find is an error.
func TestADeviceThatIsNotFound(t *testing.T) {
	b := everything()
	b.guard, b.up = guard.New(time.Minute), true
	b.lib.(*mock.Interface).DeviceGetHandleByUUIDFunc = func(string) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_NOT_FOUND }
	if _, err := b.Reading("GPU-1", "GPU-1"); err == nil || !strings.Contains(err.Error(), "find device GPU-1: not found") {
		t.Errorf("a reading: %v", err)
	}
	if _, err := b.Processes("GPU-1", "GPU-1"); err == nil {
		t.Error("its programs are listed")
	}
}
