// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestClientsOfAnMPSServer(t *testing.T) {
	for _, tc := range []struct {
		capability, cuda string
		want             int
	}{
		{"5.0", "11.4", 16}, {"6.1", "13.1", 16}, {"7.0", "11.4", 48}, {"7.5", "12.9", 48}, {"9.0", "13.0", 48}, {"9.0", "13.1", 60},
		{"9.0", "13.2", 60}, {"9.0", "14.0", 60}, {"12.0", "13.1", 60}, {"10.0", "12.8", 48}, {"", "13.1", 60}, {"", "", 48}, {"9.0", "x", 48}, {"9.0", "14", 48},
	} {
		if got := maxClients(tc.capability, tc.cuda); got != tc.want {
			t.Errorf("compute capability %q, CUDA %q: %d clients, want %d", tc.capability, tc.cuda, got, tc.want)
		}
	}
	c := testConfig(t, "mps { max_clients = 7 }")
	if got := MaxClients(c, &Unit{GPU: testGPU("GPU-1", 0)}, "13.1"); got != 7 {
		t.Errorf("the operator says 7, the plugin %d", got)
	}
}

// A fault counts with every device of the GPU, and each once.
func TestFaultsOfPartsAreCountedOnce(t *testing.T) {
	fault := func(codes ...string) (all []gpu.Fault) {
		for _, code := range codes {
			all = append(all, gpu.Fault{Code: code})
		}
		return all
	}
	for _, tc := range []struct{ parent, own, want []gpu.Fault }{
		{nil, nil, nil},
		{fault("a"), nil, fault("a")},
		{nil, fault("b"), fault("b")},
		{fault("a"), fault("a"), fault("a")},
		{fault("a", "b"), fault("b", "c"), fault("a", "b", "c")},
	} {
		if got := union(tc.parent, tc.own); faultCodes(got) != faultCodes(tc.want) {
			t.Errorf("%v and %v are %v", tc.parent, tc.own, got)
		}
	}
}

// The way in which other drivers are told of devices follows the vendor.
func TestVisibleDevicesOfEachVendor(t *testing.T) {
	unitAt := func(uuid string, gpuPosition int, part *hardware.Partition) *Unit {
		return &Unit{UUID: uuid, GPU: hardware.GPU{Position: gpuPosition}, Instance: part}
	}
	a, b := unitAt("GPU-aaaa", 0, nil), unitAt("GPU-bbbb", 3, nil)
	part, card := unitAt("GPU-aaaa-p2", 0, &hardware.Partition{Position: 2}), unitAt("GPU-0000-3b-00", 5, nil)
	for _, tc := range []struct {
		vendor string
		units  []*Unit
		want   map[string]string
	}{
		{"nvidia", []*Unit{a, b}, map[string]string{gpu.EnvNVIDIAVisible: "GPU-aaaa,GPU-bbbb", gpu.EnvCUDAVisible: "GPU-aaaa,GPU-bbbb"}},
		{"amd", []*Unit{a, b}, map[string]string{gpu.EnvROCRVisible: "GPU-aaaa,GPU-bbbb", gpu.EnvHIPVisible: "0,1"}},
		{"amd", []*Unit{part, b}, map[string]string{gpu.EnvROCRVisible: "2,GPU-bbbb", gpu.EnvHIPVisible: "0,1"}},
		{"amd", []*Unit{card}, map[string]string{gpu.EnvROCRVisible: "5", gpu.EnvHIPVisible: "0"}},
		{"intel", []*Unit{b, part}, map[string]string{gpu.EnvZEAffinity: "3,2"}},
	} {
		if got := fmt.Sprint(visible[tc.vendor](tc.units)); got != fmt.Sprint(tc.want) {
			t.Errorf("%s: %s, want %v", tc.vendor, got, tc.want)
		}
	}
}

// The plan counts slices with what the survey tells of the driver's reserve.
func TestPlanLeavesTheDriverItsMemory(t *testing.T) {
	m := testMachine(1)
	m.GPUs[0].ReservedMiB = 2000
	if u := Units(testConfig(t, sliced), testRegistry(), m, quiet())[0]; u.Slices != 77 {
		t.Errorf("the plan has %d slices", u.Slices)
	}
}
