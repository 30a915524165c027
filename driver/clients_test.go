// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// TestTwoNomadClientsShareOneContainerd lets two nodes use the same images in
// one containerd, crash and tidy up: neither touches what is the other's.
func TestTwoNomadClientsShareOneContainerd(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, one *env) {
		other := newEnv(t, one.containerd, nil)
		newNode(one)
		newNode(other)
		r := startRegistry(t, false, false)
		config := imageConfig(r.push(t, "box:1"))
		config.Command, config.Args = "sh", []string{"-c", trap}

		// Both pull the image at once; the same slices are different GPUs' there.
		mine, theirs := one.task(config, reserve(gpuA, 0)), other.task(config, reserve(gpuA, 0))
		started := make(chan error, 1)
		go func() {
			_, _, err := one.harness.StartTask(mine)
			started <- err
		}()
		theirHandle := other.start(theirs)
		must.NoError(t, <-started)
		one.waitForLog(mine, "ready")
		other.waitForLog(theirs, "ready")
		must.Len(t, 1, one.containers())
		must.Len(t, 1, other.containers())
		must.ErrorContains(t, one.harness.SignalTask(theirs.ID, "SIGUSR1"), "not found")

		// The other's driver dies, once in the middle of a start. What it left is
		// not this one's to remove, however long ago.
		cut := other.quietTask(defaultTaskConfig("sleep", "1000"), reserve(gpuA, 1))
		other.victim(orders{Config: other.config, Task: cut, Driver: defaultTaskConfig("sleep", "1000"), DieAfter: "run"}, 0)
		other.driver.Shutdown()
		one.tidy(time.Hour)
		must.Len(t, 1, one.containers())
		other.startDriver()
		must.NoError(t, other.harness.RecoverTask(theirHandle))
		must.Len(t, 2, other.containers())
		live, err := other.driver.leases.Started()
		must.NoError(t, err)
		must.Len(t, 2, live)

		// Its own driver removes it, and leaves this one's task alone.
		other.tidy(time.Hour)
		must.Len(t, 1, other.containers())
		must.Len(t, 1, one.containers())
		for _, e := range []*env{one, other} {
			_, err := e.driver.runtime.Image(context.Background(), config.Image, "overlayfs")
			must.NoError(t, err, must.Sprint("an image that both use was removed"))
		}

		// One node goes; the other's task ends as if it had been alone.
		one.end(mine)
		one.driver.Shutdown()
		must.NoError(t, other.harness.SignalTask(theirs.ID, "SIGUSR1"))
		must.Eq(t, 42, other.wait(theirs.ID).ExitCode)
		must.NoError(t, other.harness.DestroyTask(theirs.ID, true))
		must.Eq(t, nil, other.leftovers())
	})
}
