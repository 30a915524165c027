// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// countsPeriod is how often counts are written that changed.
const countsPeriod = 5 * time.Second

// countsLoop writes the counts until the driver ends. What cannot be written is told once.
func (d *Driver) countsLoop() {
	tick := time.Tick(countsPeriod)
	told := false
	for {
		n, err := d.configured()
		if err == nil {
			if err = d.counts.save(n.state); err != nil && !told {
				d.logger.Warn("what the driver counted cannot be written, and its metrics stand still", "error", err)
			}
			told = err != nil
		}
		select {
		case <-tick:
		case <-d.ctx.Done():
			return
		}
	}
}

// cpusetPeriod is how often the shared cores are read where no event told that
// they have changed.
const cpusetPeriod = time.Second

// cpusetLoop keeps tasks without cores of their own off those that Nomad reserves
// for others, from the moment that Nomad does.
func (d *Driver) cpusetLoop() {
	var events chan fsnotify.Event
	var problems chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		events, problems = watcher.Events, watcher.Errors
	} else {
		d.logger.Warn("changes of the shared cores are seen once a second only", "error", err)
	}
	tick := time.Tick(cpusetPeriod)
	for {
		added := d.tasks.changed()
		for _, t := range d.tasks.all() {
			if t.sharedCores == "" || t.exited() {
				continue
			}
			if watcher != nil {
				// Watching a file twice is watching it once.
				_ = watcher.Add(filepath.Join(t.sharedCores, "cpuset.cpus"))
			}
			d.followCores(t)
		}
		select {
		case <-added:
		case <-tick:
		case <-events:
		case err := <-problems:
			d.logger.Debug("watching the shared cores", "error", err)
		case <-d.ctx.Done():
			return
		}
	}
}

// followCores gives a container the shared cores of this moment.
func (d *Driver) followCores(t *task) {
	unified := cgroups.Unified()
	shared, _ := cgroups.SharedCPUs(t.sharedCores, unified) // "" where they cannot be read
	if shared == "" || shared == t.coresSeen {
		return
	}
	cpus, kept, err := taskconfig.CPUsWithin(t.record.CPUSetCPUs, shared)
	if err != nil {
		return // was checked when the task started
	}
	if err := cgroups.WriteCPUs(cgroups.Of(t.record.Lease), cpus, unified); err != nil {
		t.logger.Warn("a task may still run on cores that others have reserved", "shared", shared, "error", err)
		return
	}
	t.coresSeen = shared
	if !kept {
		d.emit(t.cfg, fmt.Sprintf("cpuset_cpus %q: all of them are reserved for other tasks now; the task runs on %s", t.record.CPUSetCPUs, cpus), nil)
	}
}
