// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

func TestMemoryIsFoundInAMIGInstance(t *testing.T) {
	number := func(n int64, unit string) *api.Attribute { return &api.Attribute{IntVal: &n, Unit: unit} }
	word := func(s string) *api.Attribute { return &api.Attribute{StringVal: &s} }
	n := &api.Node{ID: "id-m", Name: "m", NodePool: "default", Status: "ready", SchedulingEligibility: "eligible",
		NodeResources: &api.NodeResources{Cpu: api.NodeCpuResources{CpuShares: 64000}, Memory: api.NodeMemoryResources{MemoryMB: 256 * 1024}}}
	for profile, gib := range map[string]int64{"1g.10gb": 10, "3g.40gb": 40, "7g.80gb": 80} {
		n.NodeResources.Devices = append(n.NodeResources.Devices, &api.NodeDeviceResource{
			Vendor: "nvidia", Type: "mig", Name: profile, Instances: []*api.NodeDevice{{ID: "MIG-" + profile, Healthy: true}},
			Attributes: map[string]*api.Attribute{"model": word("NVIDIA A100-SXM4-80GB"), "type": word("A100"), "memory": number(gib*1024, "MiB"), "profile": word(profile)},
		})
	}
	b := servicetest.New(t, "", servicetest.Machine("a", 1), nomad.NewNode(n, nomad.Hardware{}))
	for request, want := range map[string]string{"8G": "nvidia/slice", "30G": "nvidia/mig/3g.40gb", "20G(A100)": "nvidia/mig/3g.40gb"} {
		d := b.Submit(t, servicetest.Ask("job-"+request, request, 1))
		if got := d.Tasks[0].Devices[0]; got.Name != want {
			t.Errorf("%s: got %+v, want %s", request, got, want)
		}
	}
	if _, err := b.Decide(t.Context(), []admit.Ask{servicetest.Ask("huge", "100G", 1)}, false); err == nil {
		t.Error("100G was found somewhere")
	}
}
