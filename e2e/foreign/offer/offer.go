// SPDX-License-Identifier: MPL-2.0

// Package offer is what the plugin e2e/foreign offers.
package offer

// Plugin is its name, NVIDIAModel and AMDModel its device groups.
const (
	Plugin      = "foreign"
	NVIDIAModel = "Tesla V100-SXM2-32GB"
	AMDModel    = "AMD Instinct MI100"
	// AMDNode is the node that a task with the GPU of AMD has.
	AMDNode = "/dev/dri/renderD250"
)

// NVIDIA and AMD are the IDs of its devices.
var (
	NVIDIA = []string{"GPU-f0000000-0000-0000-0000-000000000001", "GPU-f0000000-0000-0000-0000-000000000002"}
	AMD    = []string{"amd-f1"}
)
