// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/subcommand"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// prepareMemoryLimits finds the slices whose memory the driver can hold.
func prepareMemoryLimits(units []*plan.Unit, c *config.Config, bootID string, report func(what string, err error)) {
	for _, u := range units {
		if c.MemoryLimits && u.Sharing.Mode == gpu.ModeSlice && u.Instance == nil && u.GPU.MemoryLimits && u.Unable() == "" {
			limiter, err := subcommand.Limiter(c, bootID)
			if err != nil {
				report("command for memory limits", err)
				continue
			}
			u.Limiter = limiter
		}
	}
}
