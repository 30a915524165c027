// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// A plan says of a share that no program starts in it.
func TestAShareInWhichNoProgramStartsIsNamed(t *testing.T) {
	for memory, want := range map[string]bool{"512M": true, "600M": false} {
		n := &api.Node{
			ID: "id-a", Name: "a", Datacenter: "dc1", NodePool: "default", Status: "ready",
			SchedulingEligibility: "eligible", ModifyIndex: 1, Attributes: map[string]string{"kernel.name": "linux"},
			NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}},
		}
		d, small := servicetest.SlicedGPU("a", 0, 32), int64(512)
		d.Attributes["slice_memory"] = &api.Attribute{IntVal: &small, Unit: "MiB"}
		n.NodeResources.Devices = []*api.NodeDeviceResource{d}
		s := servicetest.New(t, "", nomad.NewNode(n, nomad.Hardware{}))
		decided := s.Submit(t, servicetest.Ask("job", memory, 1))
		if text := strings.Join(decided.Explanation, "\n"); strings.Contains(text, "512 MiB are too little for a CUDA program under MPS") != want {
			t.Errorf("%s: %s", memory, text)
		}
	}
}
