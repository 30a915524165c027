// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// faultClock keeps since when the faults stand that preparing a unit comes upon:
// of the pass before, and of this one.
type faultClock struct {
	// ignore are the codes that the operator does not want to know of.
	ignore      map[string]bool
	now         func() time.Time
	since, next map[string]time.Time
}

func (c *faultClock) begin() { c.next = map[string]time.Time{} }
func (c *faultClock) end()   { c.since = c.next }

// add adds a fault of this unit only, unless the operator ignores it.
func (c *faultClock) add(u *plan.Unit, f gpu.Fault) {
	if c.ignore[f.Code] {
		return
	}
	key := u.UUID + " " + f.Code
	since, ok := c.since[key]
	if !ok {
		since = c.now()
	}
	c.next[key] = since
	f.Since = since
	u.Faults = append(u.Faults[:len(u.Faults):len(u.Faults)], f)
}
