// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// A program that has become idle is seen to be, though the driver still keeps samples of
// what it did.
func TestProgramThatBecameIdleIsIdle(t *testing.T) {
	r := newRig(t, h100x3)
	milli := func() int64 {
		all, err := r.Processes(r.uuid(0), r.uuid(0))
		if err != nil || len(all) != 1 {
			t.Fatalf("the programs are %+v, %v", all, err)
		}
		return all[0].Milli
	}
	r.happen(0, func(c *sim.Condition) { c.Processes = []sim.Process{{PID: 7, Percent: 60}} })
	waitFor(t, "it is busy", func() bool { return milli() == 600 })
	r.happen(0, func(c *sim.Condition) { c.Processes[0].Percent = 0 })
	waitFor(t, "it is idle", func() bool { return milli() == 0 })
}
