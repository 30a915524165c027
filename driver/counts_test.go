// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// countedWithin waits until the state file says what a test expects of it.
func (n *node) countedWithin(check func(gpu.DriverCounts) error) {
	n.e.t.Helper()
	must.Wait(n.e.t, wait.InitialSuccess(wait.ErrorFunc(func() error {
		counts, err := n.dir.DriverCounts()
		if err != nil {
			return err
		}
		return check(counts)
	}), wait.Timeout(patience), wait.Gap(100*time.Millisecond)))
}

// What a driver does is in its state file, with what the process before it did.
func TestWhatTheDriverDoesIsCounted(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		n := newNode(e)
		cfg, events := n.watched(0, 1)
		n.exceed(events, cfg, 4096)
		e.wait(cfg.ID)
		_, _, err := e.harness.StartTask(e.quietTask(defaultTaskConfig("/no/such/program")))
		must.Error(t, err)
		r := startRegistry(t, false, false)
		_, _, err = e.harness.StartTask(e.quietTask(imageConfig(r.addr + "/none:1")))
		must.Error(t, err)
		counted := func(started int64) func(gpu.DriverCounts) error {
			return func(c gpu.DriverCounts) error {
				all, _ := c.StartTimes.Cumulative()
				if c.Starts[gpu.StartDone] != started || all != uint64(started) || c.Starts["run"]+c.Starts["create"] != 1 || c.Starts["image"] != 1 ||
					c.Pulls[gpu.PullFailed] != 1 || c.Pulls[gpu.PullDone] != 0 || c.Kills[codeMemory] != 1 || c.Kills[codeBesideMPS] != 0 {
					return fmt.Errorf("%+v", c)
				}
				return nil
			}
		}
		n.countedWithin(counted(1))
		e.restart()
		e.start(e.task(defaultTaskConfig("sleep", "1000")))
		n.countedWithin(counted(2))
	})
}

// Reasons that are no violation of a share are counted too.
func TestKillsAreCountedByReason(t *testing.T) {
	var c counts
	c.kill(fmt.Errorf("killed: %w", violation{code: codeBesideMPS}))
	c.kill(errors.New("something else"))
	must.Eq(t, map[string]int64{codeBesideMPS: 1, "other": 1}, c.all.Kills)
}
