// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

const h100MIG = "gpu {\n model = \"H100\"\n mig = [\"3g.40gb\", \"1g.10gb\"]\n}"

// activity reads a device until it tells how busy it is: that takes two samples.
func (r *rig) activity(uuid string) hardware.Activity {
	r.t.Helper()
	var a hardware.Activity
	waitFor(r.t, "the device tells how busy it is", func() bool {
		reading, err := r.Reading(r.uuid(0), uuid)
		a = reading.Activity
		return err == nil && a != hardware.NoActivity()
	})
	return a
}

func TestActivityIsThatOfTheMIGInstance(t *testing.T) {
	r := newRig(t, h100MIG)
	var busy, idle string
	for uuid, profile := range r.profiles() {
		if profile == "3g.40gb" {
			busy = uuid
		} else {
			idle = uuid
		}
	}
	r.happen(0, func(c *sim.Condition) { c.Processes = []sim.Process{{PID: 1, Instance: busy, Percent: 70}} })
	first, err := r.Reading(r.uuid(0), busy)
	if err != nil || first.Activity != hardware.NoActivity() {
		t.Errorf("one sample tells %+v, %v", first.Activity, err)
	}
	for uuid, want := range map[string]int64{busy: 700, idle: 0, r.uuid(0): 700} {
		if got := r.activity(uuid); got != (hardware.Activity{GraphicsMilli: want, SMMilli: want, TensorMilli: want, DRAMMilli: want, PCIeSentBytes: want / 10 << 20, PCIeReceivedBytes: want / 10 << 20}) {
			t.Errorf("%s: got %+v, want %d", uuid, got, want)
		}
	}
	// A second reader at the same moment sees the same.
	if reading, err := r.Reading(r.uuid(0), busy); err != nil || reading.SMMilli != 700 {
		t.Errorf("right after a reading: %+v, %v", reading.Activity, err)
	}
}

func TestActivityIsAbsentWhereTheHardwareDoesNotTell(t *testing.T) {
	for name, tc := range map[string]struct {
		gpus    string
		control sim.Control
	}{
		"a GPU before Hopper": {gpus: "gpu {\n model = \"A100-80GB\"\n}"},
		"an old driver":       {gpus: h100x3, control: sim.Control{NoSymbols: []string{"nvmlGpmMigSampleGet", "nvmlGpmQueryDeviceSupport"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.gpus)
			if err := sim.WriteControl(r.dir, tc.control); err != nil {
				t.Fatal(err)
			}
			r.happen(0, func(c *sim.Condition) { c.GPUPercent = 70 })
			for range 2 {
				reading, err := r.Reading(r.uuid(0), r.uuid(0))
				if err != nil || reading.Activity != hardware.NoActivity() || reading.GPUPercent != 70 {
					t.Errorf("got %+v, %v", reading, err)
				}
			}
		})
	}
}

// Samples of before a driver reload, and calls that fail, are no measurement.
func TestActivityAfterFailures(t *testing.T) {
	r := newRig(t, h100x3)
	r.happen(0, func(c *sim.Condition) { c.GPUPercent = 40 })
	if a := r.activity(r.uuid(0)); a.SMMilli != 400 {
		t.Errorf("got %+v", a)
	}
	r.Close()
	if reading, err := r.Reading(r.uuid(0), r.uuid(0)); err != nil || reading.Activity != hardware.NoActivity() {
		t.Errorf("the first sample after a reload tells %+v, %v", reading.Activity, err)
	}
	for _, call := range []string{"GpmQueryDeviceSupport", "GpmSampleGet", "GpmMetricsGet"} {
		r.happen(0, func(c *sim.Condition) { c.Errors = map[string]int{call: int(nvml.ERROR_UNKNOWN)} })
		waitFor(t, call+" takes the activity away", func() bool {
			reading, err := r.Reading(r.uuid(0), r.uuid(0))
			return err == nil && reading.Activity == hardware.NoActivity() && reading.GPUPercent == 40
		})
		r.happen(0, func(c *sim.Condition) { c.Errors = nil })
		if a := r.activity(r.uuid(0)); a.SMMilli != 400 {
			t.Errorf("after a failure of %s: %+v", call, a)
		}
	}
}

// A call that the library does not have ends the process, in sim as in life.
func TestOldDriverIsAskedOnlyWhatItHas(t *testing.T) {
	r := newRig(t, "gpu {\n model = \"H100\"\n numa = 1\n}")
	if m, err := r.Survey(); err != nil || m.GPUs[0].NUMANode != 1 {
		t.Errorf("a new driver: %+v, %v", m.GPUs, err)
	}
	err := sim.WriteControl(r.dir, sim.Control{NoSymbols: []string{
		"nvmlGpmMigSampleGet", "nvmlGpmQueryDeviceSupport", "nvmlDeviceGetMPSComputeRunningProcesses",
		"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetCurrentClocksEventReasons"}})
	if err != nil {
		t.Fatal(err)
	}
	r.happen(0, func(c *sim.Condition) { c.Processes = []sim.Process{{PID: 1}, {PID: 2, MPS: true}} })
	if m, err := r.Survey(); err != nil || len(m.GPUs[0].Problems) != 0 {
		t.Errorf("an old driver: %+v, %v", m.GPUs, err)
	}
	if all, err := r.Processes(r.uuid(0), r.uuid(0)); err != nil || len(all) != 2 || !all[0].MPSUnknown || !all[1].MPSUnknown {
		t.Errorf("its processes: %+v, %v", all, err)
	}
}
