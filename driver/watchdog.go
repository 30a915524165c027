package driver

import (
	"errors"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

const (
	watchdogPeriod = time.Second
	// usageMaxAge is how old a measurement may be to act upon.
	usageMaxAge = 30 * time.Second
)

// violation is what a task did beyond its share of one GPU.
type violation struct {
	uuid    string
	code    string
	message string
}

func (v violation) Error() string { return v.message }

// watchdogLoop holds tasks to their GPU memory, all their processes together,
// whatever keeps slices apart: the device plugin measures, the driver acts. It
// also tells tasks what happens to their GPUs.
func (d *Driver) watchdogLoop() {
	ticker := time.NewTicker(watchdogPeriod)
	defer ticker.Stop()
	w := watchdog{driver: d, warned: map[string]bool{}, faults: map[string]map[string]gpu.Fault{}}
	for {
		select {
		case <-ticker.C:
			w.round(time.Now())
		case <-d.ctx.Done():
			return
		}
	}
}

// watchdog remembers what it has said already, so that it says it once.
type watchdog struct {
	driver *Driver
	warned map[string]bool
	faults map[string]map[string]gpu.Fault
	seen   time.Time
}

func (w *watchdog) round(now time.Time) {
	tasks := w.gpuTasks()
	if len(tasks) == 0 {
		clear(w.warned)
		clear(w.faults)
		return
	}
	settings, _, state, err := w.driver.parts()
	if err != nil {
		return
	}
	w.reportFaults(tasks, state)
	usage, err := state.Usage()
	if err != nil {
		if !errors.Is(err, statedir.ErrNotFound) {
			w.driver.logger.Warn("watchdog cannot read what tasks use", "error", err)
		}
		return
	}
	if now.Sub(usage.MeasuredAt) > usageMaxAge || !usage.MeasuredAt.After(w.seen) {
		return
	}
	w.seen = usage.MeasuredAt
	byLease := map[string][]gpu.TaskUsage{}
	for _, u := range usage.Tasks {
		byLease[u.LeaseID] = append(byLease[u.LeaseID], u)
	}
	for _, t := range tasks {
		// A measurement from before the task began is of its predecessor.
		if usage.MeasuredAt.Before(t.record.StartedAt) {
			continue
		}
		for _, v := range violations(t.record.Lease, byLease[t.record.Lease.ID]) {
			w.act(t, v, settings.GPU.Watchdog)
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

// violations compares what a task was measured to use with what it holds.
func violations(l gpu.Lease, usage []gpu.TaskUsage) []violation {
	var found []violation
	for _, h := range l.Holdings {
		used, processes := int64(0), 0
		for _, u := range usage {
			if u.UUID != h.UUID {
				continue
			}
			used += u.MemoryMiB
			processes += u.Processes
			if len(u.BesideMPS) > 0 {
				found = append(found, violation{h.UUID, "beside-mps", fmt.Sprintf(
					"processes %v use GPU %s without its MPS daemon, where no limit holds them", u.BesideMPS, h.UUID)})
			}
		}
		if h.MemoryMiB > 0 && used > h.MemoryMiB {
			found = append(found, violation{h.UUID, "memory", fmt.Sprintf(
				"%d processes use %s of memory of GPU %s together, the task's share is %s",
				processes, gpu.FormatMemory(used), h.UUID, gpu.FormatMemory(h.MemoryMiB))})
		}
	}
	return found
}

// act does what the operator chose. A warning is given once per task and kind.
func (w *watchdog) act(t *task, v violation, action string) {
	key := t.cfg.ID + "/" + v.uuid + "/" + v.code
	if w.warned[key] {
		return
	}
	w.warned[key] = true
	annotations := map[string]string{"gpu": v.uuid, "reason": v.code}
	if action == watchdogWarn {
		w.driver.emit(t.cfg, "GPU limit exceeded: "+v.message, annotations)
		return
	}
	w.driver.emit(t.cfg, "GPU limit exceeded, killing the task: "+v.message, annotations)
	t.condemn(v)
	go func() {
		if err := w.driver.kill(t); err != nil {
			t.logger.Error("watchdog could not kill the task", "error", err)
		}
	}()
}

// condemn makes the task's result say why it was killed.
func (t *task) condemn(v violation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.verdict = fmt.Errorf("killed by the GPU watchdog: %w", v)
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
		}
	}
}

// reportLostServer tells a task, once, that the MPS daemon which it is a client
// of was replaced: CUDA does not reconnect, so the task cannot go on by itself.
func (w *watchdog) reportLostServer(t *task, h gpu.Holding, s gpu.GPUState) {
	key := t.cfg.ID + "/" + s.UUID + "/lost-server"
	if h.MPSGeneration == 0 || s.MPS == nil || s.MPS.Generation <= h.MPSGeneration || w.warned[key] {
		return
	}
	w.warned[key] = true
	w.driver.emit(t.cfg, fmt.Sprintf(
		"GPU %s: its MPS daemon ended and another one was started; what this task had on the GPU is lost, and its CUDA calls fail until it is restarted (nomad alloc restart)",
		s.UUID), map[string]string{"gpu": s.UUID, "fault": "mps-restarted"})
}

func (w *watchdog) reportFaultsOf(t *task, s gpu.GPUState) {
	key := t.cfg.ID + "/" + s.UUID
	now := map[string]gpu.Fault{}
	for _, f := range s.Faults {
		now[f.Code] = f
		if _, known := w.faults[key][f.Code]; !known {
			w.driver.emit(t.cfg, fmt.Sprintf("GPU %s: %s", s.UUID, f), map[string]string{"gpu": s.UUID, "fault": f.Code})
		}
	}
	for code := range w.faults[key] {
		if _, still := now[code]; !still {
			w.driver.emit(t.cfg, fmt.Sprintf("GPU %s: %s is over", s.UUID, code), map[string]string{"gpu": s.UUID, "fault": code})
		}
	}
	w.faults[key] = now
}
