// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

const (
	watchdogPeriod = time.Second
	// actAfter is how many measurements in a row must find the same: one can catch
	// a program between two of its allocations, or in the middle of its start.
	actAfter = 3
)

// watchdogLoop holds tasks to their GPU memory, all their processes together,
// whatever keeps slices apart: the device plugin measures, the driver acts. It
// also tells tasks what happens to their GPUs.
func (d *Driver) watchdogLoop() {
	tick := time.Tick(watchdogPeriod)
	w := watchdog{driver: d}
	for {
		select {
		case <-tick:
			w.round(time.Now())
		case <-d.ctx.Done():
			return
		}
	}
}

// watchdog tells each task a thing once; said is the told ones.
type watchdog struct {
	driver *Driver
	said   notices
	seen   time.Time
	// strikes counts the measurements in a row that found a violation.
	strikes map[topic]int
}

func (w *watchdog) round(now time.Time) {
	n, err := w.driver.configured()
	if err != nil {
		return
	}
	if err := w.said.load(n.state); err != nil {
		w.driver.logger.Warn("watchdog cannot read what tasks were told, and may say it again", "error", err)
	}
	tasks := w.gpuTasks()
	running := make([]string, 0, len(tasks))
	for _, t := range tasks {
		running = append(running, t.container.ID)
	}
	w.said.forgetEnded(running, n.state)
	if len(tasks) > 0 {
		w.driver.followDaemons(n, tasks)
		w.look(tasks, n.state, n.settings.GPU.Watchdog, now)
	}
	if err := w.said.save(n.state); err != nil {
		w.driver.logger.Warn("watchdog cannot note what tasks were told, and may say it again", "error", err)
	}
}

// look tells tasks what happened to their GPUs, and acts on measurements.
func (w *watchdog) look(tasks []*task, state *statedir.Dir, action string, now time.Time) {
	w.reportFaults(tasks, state)
	usage, err := state.Usage()
	if err != nil && !errors.Is(err, statedir.ErrNotFound) {
		w.driver.logger.Warn("watchdog cannot read what tasks use", "error", err)
	}
	w.reportUnmeasured(tasks, usage.MeasuredAt, now)
	if err != nil || now.Sub(usage.MeasuredAt) > usageMaxAge || !usage.MeasuredAt.After(w.seen) {
		return
	}
	w.seen = usage.MeasuredAt
	byLease := map[string][]gpu.TaskUsage{}
	for _, u := range usage.Tasks {
		byLease[u.LeaseID] = append(byLease[u.LeaseID], u)
	}
	strikes := map[topic]int{}
	for _, t := range tasks {
		// A measurement from before the task began is of its predecessor.
		if usage.MeasuredAt.Before(t.record.StartedAt) {
			continue
		}
		for _, v := range violations(t.lease(), byLease[t.record.Lease.ID]) {
			about := topic{Container: t.container.ID, UUID: v.uuid, Code: v.code}
			if strikes[about] = w.strikes[about] + 1; strikes[about] >= actAfter {
				w.act(t, v, action)
			}
		}
		w.reportBorrowed(t, byLease[t.record.Lease.ID])
	}
	w.strikes = strikes
}

// reportBorrowed tells a task, once, that it uses memory which its neighbors may want:
// NVIDIA's driver then ends programs above their soft limit.
func (w *watchdog) reportBorrowed(t *task, usage []gpu.TaskUsage) {
	for _, h := range t.lease().Holdings {
		used := usedOf(h.UUID, usage)
		if h.MostMiB() == h.MemoryMiB || used <= h.MemoryMiB+tolerance(h.MemoryMiB) || !w.said.first(topic{Container: t.container.ID, UUID: h.UUID, Code: codeBorrowed}) {
			continue
		}
		w.driver.emit(t.cfg, fmt.Sprintf("GPU %s: the task uses %s of memory and is guaranteed %s; NVIDIA's driver may end its programs when a neighbor wants the rest",
			h.UUID, gpu.FormatMemory(used), gpu.FormatMemory(h.MemoryMiB)), map[string]string{"gpu": h.UUID, "reason": codeBorrowed})
	}
}

// usedOf is the memory of one device that a task was measured to use.
func usedOf(uuid string, usage []gpu.TaskUsage) int64 {
	used := int64(0)
	for _, u := range usage {
		if u.UUID == uuid {
			used += u.MemoryMiB
		}
	}
	return used
}

// reportUnmeasured tells tasks when their GPU memory is no longer measured,
// and when it is again.
func (w *watchdog) reportUnmeasured(tasks []*task, measured, now time.Time) {
	for _, t := range tasks {
		since, about := measured, topic{Container: t.container.ID, Code: codeUnmeasured}
		if t.record.StartedAt.After(since) {
			since = t.record.StartedAt
		}
		annotations := map[string]string{"reason": codeUnmeasured}
		switch unmeasured := now.Sub(since) > usageMaxAge; {
		case unmeasured && w.said.first(about):
			w.driver.emit(t.cfg, fmt.Sprintf(
				"GPU memory is not measured since %s, so this task is not held to its share: is the device plugin running?",
				since.UTC().Format(time.TimeOnly)), annotations)
		case !unmeasured && w.said.forget(about):
			w.driver.emit(t.cfg, "GPU memory is measured again", annotations)
		}
	}
}

func (w *watchdog) gpuTasks() []*task {
	var tasks []*task
	for _, t := range w.driver.tasks.all() {
		if len(t.record.Lease.Holdings) > 0 && !t.exited() {
			tasks = append(tasks, t)
		}
	}
	return tasks
}

// act does what the operator chose. It is said once per task and kind; a kill
// that fails is tried again with the next measurement.
func (w *watchdog) act(t *task, v violation, action string) {
	first := w.said.first(topic{Container: t.container.ID, UUID: v.uuid, Code: v.code})
	does := "GPU limit exceeded: "
	if action != config.WatchdogWarn {
		does = "GPU limit exceeded, killing the task: "
	}
	if first {
		w.driver.emit(t.cfg, does+v.message, map[string]string{"gpu": v.uuid, "reason": v.code})
	}
	if action != config.WatchdogWarn {
		w.driver.killFor(t, fmt.Errorf("killed by the GPU watchdog: %w", v))
	}
}

// reportFaults tells tasks of faults of their GPUs, and when they are gone.
func (w *watchdog) reportFaults(tasks []*task, state *statedir.Dir) {
	for _, t := range tasks {
		for _, h := range t.record.Lease.Holdings {
			s, err := state.GPU(h.UUID)
			if err != nil {
				continue // a device plugin that is away is no fault of the GPU
			}
			w.reportFaultsOf(t, s)
			w.reportLostServer(t, h, s)
			w.reportServerFault(t, h, s)
			if v, found := fatal(t.record.Lease, h, s); found {
				w.recoverTask(t, v)
			}
		}
	}
}

// reportLostServer tells a task, once, that the MPS daemon which it is a client
// of was replaced.
func (w *watchdog) reportLostServer(t *task, h gpu.Holding, s gpu.GPUState) {
	if !lostServer(h, s) || !w.said.first(topic{Container: t.container.ID, UUID: s.UUID, Code: codeLostServer}) {
		return
	}
	w.driver.emit(t.cfg, fmt.Sprintf(
		"GPU %s: its MPS daemon ended and another one was started; what this task had on the GPU is lost, and its CUDA calls fail until it is restarted",
		s.UUID), map[string]string{"gpu": s.UUID, "fault": codeLostServer})
}

// reportServerFault tells a task, once, that its MPS server had a fault, and when it
// takes programs again.
func (w *watchdog) reportServerFault(t *task, h gpu.Holding, s gpu.GPUState) {
	about, annotations := topic{Container: t.container.ID, UUID: s.UUID, Code: codeServerFault}, map[string]string{"gpu": s.UUID, "fault": codeServerFault}
	v, stands := serverFault(t.record.Lease, h, s)
	switch {
	case stands && w.said.first(about):
		w.driver.emit(t.cfg, v.message+"; CUDA calls of this task fail until it is restarted, and the GPU takes no new work until all its tasks have been", annotations)
	case !stands && w.said.forget(about):
		w.driver.emit(t.cfg, fmt.Sprintf("GPU %s: its MPS server takes programs again", s.UUID), annotations)
	}
}

func (w *watchdog) reportFaultsOf(t *task, s gpu.GPUState) {
	for _, f := range s.Faults {
		if w.said.first(topic{Container: t.container.ID, UUID: s.UUID, Code: f.Code, Fault: true}) {
			w.driver.emit(t.cfg, fmt.Sprintf("GPU %s: %s", s.UUID, f), map[string]string{"gpu": s.UUID, "fault": f.Code})
		}
	}
	over := w.said.matching(func(about topic) bool {
		return about.Container == t.container.ID && about.UUID == s.UUID && about.Fault &&
			!slices.ContainsFunc(s.Faults, func(f gpu.Fault) bool { return f.Code == about.Code })
	})
	for _, about := range over {
		w.said.forget(about)
		w.driver.emit(t.cfg, fmt.Sprintf("GPU %s: %s is over", s.UUID, about.Code), map[string]string{"gpu": s.UUID, "fault": about.Code})
	}
}

// recoverTask ends a task that cannot go on, so that Nomad starts it again under
// its restart policy: here when the GPU is well, and elsewhere when it stays ill.
// A task that says so is only told.
func (w *watchdog) recoverTask(t *task, v violation) {
	if config.OnFault(t.cfg) == taskconfig.OnFaultEvent {
		return
	}
	if w.said.first(topic{Container: t.container.ID, UUID: v.uuid, Code: "restart-" + v.code}) {
		w.driver.emit(t.cfg, "The task cannot go on, and is ended for Nomad to start it again: "+v.message, map[string]string{"gpu": v.uuid, "fault": v.code})
	}
	w.driver.killFor(t, fmt.Errorf("ended for a restart: %w", v))
}

// killFor ends a task unless that is under way, with the reason as its result. One
// that fails is tried again when there is a reason again.
func (d *Driver) killFor(t *task, reason error) {
	if !t.markKilled(reason) {
		return
	}
	d.work.start(func() {
		if err := d.kill(t); err != nil {
			t.logger.Error("watchdog could not kill the task, and will try again", "error", err)
			t.clearKilled()
			return
		}
		d.counts.kill(reason)
	})
}
