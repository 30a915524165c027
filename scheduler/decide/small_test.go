// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// A plan says of a share that no program starts in it, and of compute that was asked for, but
// not of compute in proportion to the memory, that programs get more.
func TestSharesThatAreTooSmallAreNamed(t *testing.T) {
	const memoryText, computeText = "512 MiB are too little for a CUDA program under MPS", "0.03 of the compute is less than MPS can hold a program to: on an H100 each has at least eight multiprocessors, about 0.063"
	for request, want := range map[string]string{"512M": memoryText, "600M": "", "2G,0.03": computeText, "2G,0.063": ""} {
		n := &api.Node{
			ID: "id-a", Name: "a", Datacenter: "dc1", NodePool: "default", Status: "ready",
			SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
			NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
		}
		d, small := servicetest.SlicedGPU("a", 0, 32), int64(512)
		model := "H100"
		d.Attributes["type"] = &api.Attribute{StringVal: &model}
		d.Attributes["slice_memory"] = &api.Attribute{IntVal: &small, Unit: "MiB"}
		n.NodeResources.Devices = []*api.NodeDeviceResource{d}
		s := servicetest.New(t, "", nomad.NewNode(n, nomad.Hardware{}))
		decided := s.Submit(t, servicetest.Ask("job", request, 1))
		text := strings.Join(decided.Explanation, "\n")
		for _, warning := range []string{memoryText, computeText} {
			if strings.Contains(text, warning) != (warning == want) {
				t.Errorf("%s: %s", request, text)
			}
		}
	}
}

// Only MPS v3 holds other drivers' tasks to more than their guarantee.
func TestALimitThatOnlySomeGPUsHoldIsNamed(t *testing.T) {
	s := servicetest.New(t, "", servicetest.Machine("a", 1))
	for _, driver := range []string{"containerd", "docker"} {
		ask := servicetest.Ask(driver, "0.25", 1)
		ask.Tasks[0].Driver, ask.Tasks[0].LimitMilli = driver, 800
		text := strings.Join(s.Submit(t, ask).Explanation, "\n")
		if strings.Contains(text, "gpu_limit of task \"t\" is held where MPS has protocol 3") != (driver == "docker") {
			t.Errorf("%s: %s", driver, text)
		}
	}
}
