// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/mps"
)

// MaxClients is how many clients the MPS server of a unit can have, with a CUDA.
func MaxClients(c *config.Config, u *Unit, cuda string) int {
	if c.MPS.MaxClients > 0 {
		return c.MPS.MaxClients
	}
	return maxClients(u.GPU.ComputeCapability, cuda)
}

// maxClients is how many clients an MPS server of a GPU can have: 16 before
// Volta, 48 from Volta on, 60 with CUDA 13.1 and later.
func maxClients(capability, cuda string) int {
	if beforeVolta(capability) {
		return 16
	}
	var cudaMajor, cudaMinor int
	if n, _ := fmt.Sscanf(cuda, "%d.%d", &cudaMajor, &cudaMinor); n == 2 && (cudaMajor > 13 || cudaMajor == 13 && cudaMinor >= 1) {
		return mps.MostClients
	}
	return 48
}
