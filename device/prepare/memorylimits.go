package prepare

import (
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/subcommand"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// prepareMemoryLimits finds the slices whose memory the driver can hold.
func (p *Preparer) prepareMemoryLimits(units []*plan.Unit) {
	for _, u := range units {
		if p.Config.MemoryLimits && u.Sharing.Mode == gpu.ModeSlice && u.Instance == nil && u.GPU.MemoryLimits && u.Unable() == "" {
			limiter, err := subcommand.Limiter(p.Config, p.Platform.BootID)
			if err != nil {
				p.Report("command for memory limits", err)
				continue
			}
			u.Limiter = limiter
		}
	}
}
