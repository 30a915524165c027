package device

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// faultClock keeps since when the faults stand that preparing a unit comes upon:
// of the pass before, and of this one.
type faultClock struct {
	since, next map[string]time.Time
}

func (c *faultClock) begin() { c.next = map[string]time.Time{} }
func (c *faultClock) end()   { c.since = c.next }

// addFault adds a fault of this unit only, unless the operator ignores it.
func (r *reconciler) addFault(u *plan.Unit, f gpu.Fault) {
	if r.config.Health.Ignore[f.Code] {
		return
	}
	key := u.UUID + " " + f.Code
	since, ok := r.faults.since[key]
	if !ok {
		since = r.now()
	}
	r.faults.next[key] = since
	f.Since = since
	u.Faults = append(u.Faults[:len(u.Faults):len(u.Faults)], f)
}
