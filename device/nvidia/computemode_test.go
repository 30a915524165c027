// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

func TestComputeModes(t *testing.T) {
	r := newRig(t, `gpu { model = "H100" }`)
	uuid := r.machine.Topology().UUID(0)
	for _, mode := range []hardware.ComputeMode{hardware.ComputeExclusive, hardware.ComputeProhibited, hardware.ComputeDefault} {
		if err := r.SetComputeMode(uuid, uuid, mode); err != nil {
			t.Fatal(err)
		}
		if got, err := r.ComputeMode(uuid, uuid); err != nil || got != mode {
			t.Errorf("%s is read as %s, %v", mode, got, err)
		}
		machine, err := r.Survey()
		if err != nil {
			t.Fatal(err)
		}
		g := machine.GPUs[0]
		if g.Exclusive != (mode != hardware.ComputeDefault) {
			t.Errorf("in %s a survey sees exclusive %t", mode, g.Exclusive)
		}
	}
	// What only old drivers have.
	d, _ := r.machine.DeviceGetHandleByUUID(uuid)
	if ret := d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_THREAD); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if got, err := r.ComputeMode(uuid, uuid); err != nil || got != hardware.ComputeExclusive {
		t.Errorf("EXCLUSIVE_THREAD is %s, %v", got, err)
	}
	if err := r.SetComputeMode(uuid, uuid, "FAST"); err == nil || !strings.Contains(err.Error(), `"FAST" is not a mode`) {
		t.Errorf("an unknown mode: %v", err)
	}
}

func TestComputeModesThatFail(t *testing.T) {
	r := newRig(t, `gpu { model = "H100" }`)
	uuid := r.machine.Topology().UUID(0)
	fail := func(call string) {
		if err := sim.Update(r.dir, uuid, func(c *sim.Condition) { c.Errors = map[string]int{call: int(nvml.ERROR_NO_PERMISSION)} }); err != nil {
			t.Fatal(err)
		}
	}
	fail("SetComputeMode")
	if err := r.SetComputeMode(uuid, uuid, hardware.ComputeExclusive); err == nil || !strings.Contains(err.Error(), "to EXCLUSIVE_PROCESS: no permission") {
		t.Errorf("a refusal to set: %v", err)
	}
	fail("GetComputeMode")
	if _, err := r.ComputeMode(uuid, uuid); err == nil || !strings.Contains(err.Error(), "no permission") {
		t.Errorf("a refusal to read: %v", err)
	}
	if err := r.SetComputeMode("GPU-x", "GPU-x", hardware.ComputeExclusive); err == nil {
		t.Error("a GPU that is not there has a mode")
	}
}
