// SPDX-License-Identifier: MPL-2.0

package device

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

// A GPU is forgotten when it is known not to be there, not when it is not seen.
func TestForgetWaitsForASurveyOfEveryGPU(t *testing.T) {
	ours, others := testMachine(2), testMachine(1)
	for name, tc := range map[string]struct {
		gpus              []hardware.GPU
		driver            hardware.Driver
		forgotten, marked bool
	}{
		"NVML is absent":      {nil, hardware.Driver{Absent: &hardware.Problem{Code: "nvml-absent"}}, false, true},
		"a GPU does not tell": {others.GPUs, hardware.Driver{Unknown: []hardware.Problem{{Code: "nvml-timeout"}}}, false, true},
		"it is there":         {ours.GPUs, hardware.Driver{}, false, false},
		"it is not there":     {others.GPUs, hardware.Driver{}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			uuid := testUUID(1)
			o := &observations{log: hclog.NewNullLogger(), report: func(string, error) {}, registry: testRegistry(), forgotten: registry.OpenForgotten(t.TempDir())}
			o.registry.Admit(ours.GPUs)
			if err := o.forgotten.Add(uuid, ""); err != nil {
				t.Fatal(err)
			}
			o.forget(hardware.Machine{GPUs: tc.gpus, Drivers: map[string]hardware.Driver{"nvidia": tc.driver}})
			if forgotten := !slices.Contains(o.registry.GPUs(), uuid); forgotten != tc.forgotten || o.forgotten.Has(uuid) != tc.marked {
				t.Errorf("forgotten %v, still marked %v", forgotten, o.forgotten.Has(uuid))
			}
		})
	}
}

// A node with NVIDIA's GPUs does not complain at its first start that AMD's driver is
// missing; one without any GPU does.
func TestAbsentVendorsAreToldWhereThereIsNoOther(t *testing.T) {
	absent := hardware.Driver{Absent: &hardware.Problem{Code: "amdgpu-absent"}, Err: errors.New("the amdgpu driver is not loaded")}
	for name, tc := range map[string]struct {
		gpus []hardware.GPU
		told bool
	}{"beside others": {testMachine(1).GPUs, false}, "alone": {nil, true}} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			r := &reconciler{registry: testRegistry(), worked: map[string]bool{}, logOnce: newOnceLogger(hclog.New(&hclog.LoggerOptions{Output: &log}))}
			r.checkDrivers(hardware.Machine{GPUs: tc.gpus, Drivers: map[string]hardware.Driver{"amd": absent}})
			if told := strings.Contains(log.String(), "the amdgpu driver is not loaded"); told != tc.told {
				t.Errorf("told: %v, want %v: %s", told, tc.told, log.String())
			}
		})
	}
}
