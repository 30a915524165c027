// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"sync"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// counts are what the driver did since the machine booted, also before this process.
type counts struct {
	mu      sync.Mutex
	all     gpu.DriverCounts
	loaded  bool
	changed bool
}

// change changes the counts. What an earlier process counted is added when it is read.
func (c *counts) change(f func(*gpu.DriverCounts)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all.Starts == nil {
		c.all = gpu.NewDriverCounts()
	}
	f(&c.all)
	c.changed = true
}

// start counts a start: outcome is what came of it, or the step that failed.
func (c *counts) start(outcome string, took time.Duration) {
	c.change(func(all *gpu.DriverCounts) {
		all.Starts[outcome]++
		if outcome == gpu.StartDone {
			all.StartTimes.Add(took)
		}
	})
}

// pull counts an image that was fetched, or was not.
func (c *counts) pull(err error, took time.Duration) {
	c.change(func(all *gpu.DriverCounts) {
		if err != nil {
			all.Pulls[gpu.PullFailed]++
			return
		}
		all.Pulls[gpu.PullDone]++
		all.PullTimes.Add(took)
	})
}

// kill counts a task that the watchdog killed.
func (c *counts) kill(reason error) {
	code := "other"
	var v violation
	if errors.As(reason, &v) {
		code = v.code
	}
	c.change(func(all *gpu.DriverCounts) { all.Kills[code]++ })
}

// save writes the counts where the device plugin finds them, if they changed.
func (c *counts) save(state *statedir.Dir) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.loaded {
		before, err := state.DriverCounts()
		if err != nil && !errors.Is(err, statedir.ErrNotFound) {
			return err
		}
		c.all, c.loaded, c.changed = before.Plus(c.all), true, true
		for _, code := range []string{codeMemory, codeBesideMPS} { // zero from the start
			c.all.Kills[code] += 0
		}
	}
	if !c.changed {
		return nil
	}
	err := state.WriteDriverCounts(c.all)
	c.changed = err != nil
	return err
}
