// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/output"
	"github.com/nomad-gpu/nomad-gpu/driver/record"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// StartTask runs a task. Whatever fails leaves nothing behind. A start that was
// begun before, by a process that died, is taken up where it is: Nomad asks again
// with the same ID, and the task must not run twice. Nomad calls nothing that would stop
// a start that is under way: see endUnwanted.
func (d *Driver) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	if _, err := d.tasks.get(cfg.ID); err == nil {
		return nil, nil, fmt.Errorf("task %q is already started", cfg.ID)
	}
	ctx, done, err := d.starts.begin(d.ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	t, err := d.admitted(ctx, cfg)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errStartStopped) {
		return nil, nil, errors.Join(cause, err)
	}
	if err != nil {
		return nil, nil, recoverable(err)
	}
	// Nomad keeps no state for us: containers are found by label.
	handle := drivers.NewTaskHandle(handleVersion)
	handle.Config, handle.State = cfg, drivers.TaskStateRunning
	return handle, t.record.Network, nil
}

// admitted starts a task once there is room for another start.
func (d *Driver) admitted(ctx context.Context, cfg *drivers.TaskConfig) (*task, error) {
	if err := d.starts.enter(ctx, cfg); err != nil {
		return nil, err
	}
	defer d.starts.leave(cfg)
	return d.startOrAdopt(ctx, cfg)
}

func (d *Driver) startOrAdopt(ctx context.Context, cfg *drivers.TaskConfig) (*task, error) {
	existing, err := d.findExisting(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if t, err := d.adopt(ctx, cfg, existing); t != nil || err != nil {
		return t, err
	}
	return d.start(ctx, cfg, existing)
}

// findExisting returns the containers that there are of a task of an allocation: of
// this start, of one that died half-way, or of a run that could not be recovered.
func (d *Driver) findExisting(ctx context.Context, cfg *drivers.TaskConfig) ([]*runtime.Container, error) {
	n, err := d.configured()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return n.runtime.Find(ctx, map[string]string{record.LabelNode: cfg.NodeID, record.LabelAlloc: cfg.AllocID, record.LabelTask: cfg.Name})
}

// adopt takes up a task whose process an earlier attempt of the same start ran,
// whether it still runs or not. It returns nil where there is none.
func (d *Driver) adopt(ctx context.Context, cfg *drivers.TaskConfig, existing []*runtime.Container) (*task, error) {
	for _, c := range existing {
		if c.Labels[record.LabelTaskID] != cfg.ID {
			continue
		}
		r, err := record.Of(c)
		if err != nil {
			return nil, err
		}
		t, err := d.resume(ctx, cfg, c, r)
		if errors.Is(err, runtime.ErrNotFound) {
			continue // it never ran
		}
		if err != nil {
			return nil, err
		}
		d.logger.Info("a start that was begun before is taken up", "task_id", cfg.ID, "container", c.ID)
		return t, nil
	}
	return nil, nil
}

// start runs a task, step by step. When a step fails, or the start is
// canceled, it and those before are undone, the last first. A step that cannot be undone
// keeps those before it: a container that cannot be removed keeps its lease.
func (d *Driver) start(ctx context.Context, cfg *drivers.TaskConfig, existing []*runtime.Container) (*task, error) {
	s, begin := &start{driver: d, cfg: cfg, existing: existing}, time.Now()
	defer s.release()
	for i, step := range d.steps {
		err := step.do(s, ctx)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			outcome := step.name
			if ctx.Err() != nil {
				outcome = gpu.StartStopped
			}
			d.counts.start(outcome, time.Since(begin))
			return nil, errors.Join(err, s.undo(d.steps[:i+1]))
		}
	}
	d.counts.start(gpu.StartDone, time.Since(begin))
	return s.task, nil
}

// undo takes back steps, the last first.
func (s *start) undo(steps []step) error {
	for _, step := range slices.Backward(steps) {
		if step.undo == nil {
			continue
		}
		if err := step.undo(s); err != nil {
			return fmt.Errorf("what the start made could not be removed completely: %w", err)
		}
	}
	return nil
}

// step is a part of a start. Undo takes back what do made, all of it, a part or
// nothing, under a context of its own: it must also succeed when the start was
// canceled.
type step struct {
	name string
	do   func(*start, context.Context) error
	undo func(*start) error
}

// startSteps are a start in the order in which it happens. A process that dies
// between any two of them leaves what the next start, or the reaper, finds. Nothing of a
// GPU is held while a start waits for a registry or for another task.
var startSteps = []step{
	{name: "plan", do: (*start).makePlan},
	{name: "clear", do: (*start).removeExisting},
	{name: "image", do: (*start).getImage},
	{name: "join", do: (*start).joinPartners},
	{name: "claim", do: (*start).claimLease, undo: (*start).endLease},
	{name: "open", do: (*start).awaitOpen},
	{name: "prepare", do: (*start).prepareHost, undo: (*start).removeHostResources},
	{name: "create", do: (*start).createContainer, undo: (*start).removeContainer},
	{name: "seat", do: (*start).awaitSeat},
	{name: "run", do: (*start).runContainer},
	{name: "watch", do: (*start).watchTask, undo: (*start).forgetTask},
}

// start is one attempt to run a task, with its results so far.
type start struct {
	driver   *Driver
	cfg      *drivers.TaskConfig
	existing []*runtime.Container

	plan      *startPlan
	output    *output.Output
	claimed   bool
	image     runtime.Image
	container *runtime.Container
	task      *task
}

func (s *start) makePlan(ctx context.Context) (err error) {
	s.plan, err = s.driver.plan(ctx, s.cfg)
	return err
}

// removeExisting removes earlier containers of the task. One that cannot be removed
// keeps its lease, and with it the GPU.
func (s *start) removeExisting(ctx context.Context) error {
	var err error
	if s.output, err = output.Open(s.cfg, outputMarks(s.plan.env.settings)); err != nil {
		return err
	}
	for _, c := range s.existing {
		s.driver.logger.Warn("removing an earlier container of the task", "task_id", s.cfg.ID, "container", c.ID)
		if c.Labels[record.LabelTaskID] == s.cfg.ID {
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			_, err := c.Status(ctx)
			cancel()
			s.output.PipesAlive = s.output.PipesAlive || errors.Is(err, runtime.ErrNotStarted)
		}
		if err := s.driver.removeWithLease(c); err != nil {
			return structs.NewRecoverableError(err, true)
		}
	}
	return nil
}

// claimLease claims what the task was given, if that is still as it was when it was planned:
// getting the image can take long.
func (s *start) claimLease(context.Context) error {
	if err := shareLost(s.plan); err != nil {
		return err
	}
	if err := s.driver.leases.Claim(s.plan.record.Lease); err != nil {
		return structs.NewRecoverableError(err, true)
	}
	s.claimed = true
	return nil
}

func (s *start) endLease() error {
	if !s.claimed {
		return nil
	}
	return s.driver.leases.End(s.plan.record.Lease, time.Now())
}

// release ends what lasts as long as the start, whatever came of it.
func (s *start) release() {
	if s.output != nil {
		s.output.Release()
	}
	if s.plan != nil {
		s.plan.files.close()
	}
	if s.claimed {
		s.driver.leases.StartEnded(s.plan.record.Lease)
		s.driver.seats.setReady(s.plan.record.Lease.ID, false)
	}
}

func (s *start) awaitOpen(ctx context.Context) error {
	return awaitOpen(ctx, s.plan.share.Holdings, s.plan.env.state)
}

func (s *start) awaitSeat(ctx context.Context) error {
	return s.driver.awaitSeat(ctx, s.cfg, s.plan.record.Lease, s.plan.env.state)
}

// getImage gets the image, and notes that it is used. One that was collected while the
// start waited for its turn is got again.
func (s *start) getImage(ctx context.Context) (err error) {
	for {
		s.image, err = s.driver.image(ctx, s.plan.env, s.cfg, s.plan.config)
		if err != nil || !s.image.Managed() {
			return err
		}
		err = s.plan.env.runtime.TouchImage(ctx, s.image.Name, time.Now())
		if !errors.Is(err, runtime.ErrNotFound) {
			break
		}
	}
	s.plan.labels[record.LabelManaged] = "true"
	return err
}

// joinPartners waits for the tasks whose namespaces the task shares.
func (s *start) joinPartners(ctx context.Context) error {
	if s.plan.config.Partners() == (taskconfig.Partners{}) {
		return nil
	}
	return s.driver.starts.aside(ctx, s.cfg, func() error { return s.driver.join(ctx, s.plan) })
}

// prepareHost makes what the driver keeps on the host for the task.
func (s *start) prepareHost(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.driver.takePartition(ctx, s.plan); err != nil {
		return err
	}
	if err := s.driver.takeNamespace(ctx, s.plan); err != nil {
		return err
	}
	return s.plan.prepare(ctx)
}

func (s *start) removeHostResources() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s.driver.returnPartition(ctx, s.plan.env, s.plan.record.Lease)
	s.driver.returnNamespace(ctx, s.plan.env, s.plan.record.Lease)
	return s.driver.removeHostResources(s.plan.record.Lease.Container)
}

func (s *start) createContainer(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if s.container, err = s.plan.create(ctx, s.image); err != nil {
		return err
	}
	return s.driver.recordTask(s.container, s.plan.record)
}

func (s *start) removeContainer() error {
	if s.container == nil {
		return nil
	}
	err := s.driver.remove(s.container)
	if err != nil {
		s.driver.removeLater(s.container, err)
	}
	return err
}

func (s *start) runContainer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.output.Opening(); err != nil {
		return err
	}
	stdio, err := s.output.Stdio(s.plan.stage, s.plan.config.TTY)
	if err != nil {
		return err
	}
	if err := s.container.Start(ctx, stdio, s.plan.limitMemory); err != nil {
		return errors.Join(shareLost(s.plan), err)
	}
	settings := s.plan.env.settings
	if err := newStages(settings).Remove(ctx, s.container.ID); err != nil {
		s.driver.logger.Warn("mounts that only the start needed stay until the task ends", "container", s.container.ID, "error", err)
	}
	return nil
}

func (s *start) watchTask(context.Context) error {
	lease := s.plan.record.Lease
	lease.Phase = gpu.PhaseRunning
	if err := s.driver.leases.Write(lease); err != nil {
		return err
	}
	s.task = s.driver.watch(s.cfg, s.container, s.plan.record)
	if len(s.plan.share.Holdings) > 0 {
		s.driver.emit(s.cfg, "GPU share: "+describeShare(s.plan.share), nil)
	}
	if s.plan.selfHidden != "" {
		s.driver.emit(s.cfg, fmt.Sprintf("the task has no %s: the job's own mount at %q hides it", gpu.SelfSocket, s.plan.selfHidden), nil)
	}
	if dropped := spec.Dropped(s.cfg.Env, s.cfg.DeviceEnv); len(dropped) > 0 {
		s.driver.emit(s.cfg, "left out of the environment, since the driver alone says which GPU a task has: "+strings.Join(dropped, ", "), nil)
	}
	return nil
}

func (s *start) forgetTask() error {
	if s.task != nil {
		s.task.cancel()
		s.driver.tasks.remove(s.cfg.ID)
	}
	return nil
}

// shareLost says why a start failed for which the share is not ready any more:
// while it was under way the GPU's MPS daemon was replaced, or the GPU fell ill.
func shareLost(p *startPlan) error {
	now, err := shareOf(p.cfg, p.config, p.env.state)
	if err != nil || len(now.Holdings) == 0 {
		return err
	}
	if old := p.share.Holdings[0]; now.Holdings[0].MPSGeneration != old.MPSGeneration {
		return &spec.NotReadyError{UUID: old.UUID, Reason: "its MPS daemon was replaced while the task started"}
	}
	return nil
}

// recoverable marks errors that go away by themselves, so that Nomad starts the
// task again under its restart policy; others are final. Nomad looks at the
// outermost error only.
func recoverable(err error) error {
	var notReady *spec.NotReadyError
	var marked *structs.RecoverableError
	if errors.As(err, &notReady) || errors.As(err, &marked) && marked.IsRecoverable() || errors.Is(err, cgroups.ErrStillRuns) ||
		errors.Is(err, runtime.ErrOutOfMemory) || runtime.Transient(err) {
		return structs.NewRecoverableError(err, true)
	}
	return err
}
