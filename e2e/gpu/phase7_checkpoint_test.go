// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
)

// A process goes out of the GPU and comes back with its memory: what suspending a
// task takes. It comes last. The kill of a process that was restored has hung hosts
// (cuda-checkpoint#53), so each goes out of the GPU again before it ends, and one that
// does not go is left to end by itself.
func TestCheckpointAndRestore(t *testing.T) {
	g := idle(t)
	for _, gib := range []int{1, 8, 40} {
		t.Run(fmt.Sprintf("%d GiB", gib), func(t *testing.T) {
			c := start(t, g.UUID, mps.Status{}, nil, "hold", fmt.Sprint(gib*1024))
			holds, _, _ := c.held(t)
			if holds < gib*1024 {
				unavailable(t, "the GPU has room for %d MiB", holds)
			}
			step := func(step string) string {
				began := time.Now()
				said := start(t, g.UUID, mps.Status{}, nil, step, fmt.Sprint(c.cmd.Process.Pid)).outcome()
				took := time.Since(began)
				figure(t, "%s of %d GiB takes %s, %.2f GiB/s: %s", step, gib, took.Round(time.Millisecond), float64(gib)/took.Seconds(), said)
				return said
			}
			const well = "it ends well"
			for _, name := range []string{"lock", "checkpoint", "restore", "unlock"} {
				c.spared.Store(name == "restore" || name == "unlock")
				if said := step(name); said != well {
					unavailable(t, "%s: %s", name, said)
				}
				if name == "checkpoint" {
					figure(t, "meanwhile, NVML: %s", shown(g.UUID, c.cmd.Process.Pid))
				}
			}
			if _, err := fmt.Fprintln(c.in); err != nil {
				t.Fatal(err)
			}
			if said := c.line(t); said != "intact" {
				t.Errorf("its memory is %s", said)
			}
			for _, name := range []string{"lock", "checkpoint"} {
				if said := step(name); said != well {
					t.Fatalf("it is left to end by itself: %s: %s", name, said)
				}
			}
			c.spared.Store(false)
		})
	}
}
