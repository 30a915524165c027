// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// layOut makes the MIG instances that the configuration declares, on GPUs that
// are empty. It compares sizes only: an existing instance stays, with its UUID,
// so that a second run changes nothing and a reboot is repaired.
func (p *Preparer) layOut(units []*plan.Unit) {
	for _, u := range units {
		if u.Instance != nil || !u.Sharing.Mode.InParts() || u.Gone {
			continue
		}
		wanted := slices.Sorted(slices.Values(p.Config.RuleFor(u.GPU, u.Index).Declared()))
		if len(wanted) == 0 || plan.LaidOut(u.GPU, wanted) {
			continue
		}
		if u.Busy || len(u.Faults) > 0 || plan.Unclear(u.GPU) {
			continue // plan has cordoned it, or it must get well first
		}
		input := strings.Join(wanted, " ")
		_, err := p.background.do("layout "+u.UUID, input, retryInterval, func() error {
			p.Log.Info("laying out partitions", "gpu", u.UUID, "profiles", input)
			return p.Platform.Partitioner.Layout(u.UUID, wanted)
		})
		if err != nil {
			p.faults.add(u, gpu.Fault{Code: "mig-layout-failed", Message: "the " + string(u.Sharing.Mode) + " layout could not be made: " + err.Error(),
				Action: "compare profiles in the plugin's configuration with what the GPU knows (nvidia-smi mig -lgip, amd-smi partition, npu-smi info -t template-info); what was there is offered"})
		}
	}
}
