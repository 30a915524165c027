// SPDX-License-Identifier: MPL-2.0

package cluster

import "path/filepath"

// MachineOfExamples is a machine with a GPU for everything that examples/ asks
// for: of eight H100, four in slices, two as MIG instances and two whole. Root
// is the repository.
func MachineOfExamples(root string) NodeOptions {
	return NodeOptions{Topology: filepath.Join(root, "e2e", "topology", "dgx-h100.hcl"), GPUs: `
    gpu {
      index   = 0
      mode    = "slice"
      sharing = "mps"
    }
    gpu {
      index   = 1
      mode    = "slice"
      sharing = "mps"
    }
    gpu {
      index   = 2
      mode    = "slice"
      sharing = "mps"
    }
    gpu {
      index   = 3
      mode    = "slice"
      sharing = "mps"
    }
    gpu {
      index = 4
      mode  = "mig"
    }
    gpu {
      index = 5
      mode  = "mig"
    }
`}
}

// GPUsOfExamples is how many GPUs each example's container can open.
var GPUsOfExamples = map[string]int{
	"all-slices": 1, "burst": 1, "mig": 1, "no-gpu": 0, "slice": 1, "two-gpus": 2, "whole-gpu": 1,
}

// MachineOfVendors is a machine with devices of every vendor, for the jobs of
// examples/vendors.
func MachineOfVendors(root string) NodeOptions {
	return NodeOptions{Name: "vendors", Topology: filepath.Join(root, "e2e", "topology", "vendors.hcl")}
}
