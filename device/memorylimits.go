package device

import (
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/subcommand"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// prepareMemoryLimits finds the slices whose memory the driver can hold.
func (r *reconciler) prepareMemoryLimits(units []*plan.Unit) {
	for _, u := range units {
		if r.config.MemoryLimits && u.Sharing.Mode == gpu.ModeSlice && u.Instance == nil && u.GPU.MemoryLimits && u.Unable() == "" {
			limiter, err := subcommand.Limiter(r.config, r.platform.BootID)
			if err != nil {
				r.logOnce.report("command for memory limits", err)
				continue
			}
			u.Limiter = limiter
		}
	}
}
