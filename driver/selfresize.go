// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// resizeEvery is how often at most a task may change its share: each change is written to
// disk, told as an event, and may have a program run.
const resizeEvery = 5 * time.Second

// resize changes the task's share within its counted guarantee and the free capacity.
func (s selfOf) resize(ctx context.Context, want gpu.SelfResize) (message string, err error) {
	t := s.task
	if !t.own.mu.TryLock() {
		return "", errors.New("resize: another change of the task's share is under way; try again when it is done")
	}
	defer t.own.mu.Unlock()
	if since := time.Since(t.own.last); since < resizeEvery {
		return "", fmt.Errorf("resize: the share was changed %s ago; it can be changed once every %s", since.Round(time.Second), resizeEvery)
	}
	before := t.lease()
	if len(before.Holdings) != 1 {
		return "", fmt.Errorf("resize: the task holds %d GPUs (resize is for tasks on a part of one)", len(before.Holdings))
	}
	n, err := s.driver.configured()
	if err != nil {
		return "", err
	}
	state, err := n.state.GPU(before.Holdings[0].UUID)
	if err != nil {
		return "", fmt.Errorf("resize: nothing is known of GPU %s now; try again later", before.Holdings[0].UUID)
	}
	after := before
	after.Phase = gpu.PhaseRunning
	h, err := spec.Resize(before.Holdings[0], t.record.Lease.Holdings[0], t.record.CeilingMilli, state, want)
	if err != nil {
		return "", err
	}
	if err := s.holdsLess(h); err != nil {
		return "", err
	}
	after.Holdings, t.own.last = []gpu.Holding{h}, time.Now()
	if err := s.driver.leases.Resize(after); err != nil {
		return "", err
	}
	if err := limitNamespace(ctx, n, after, t.record.BelowNormal); err != nil {
		before.Phase = gpu.PhaseRunning
		return "", errors.Join(err, s.driver.leases.Resize(before))
	}
	if err := limitNow(ctx, after, state, before.Holdings[0]); err != nil {
		before.Phase = gpu.PhaseRunning
		return "", errors.Join(fmt.Errorf("resize: memory_limit: the GPU's driver was not changed: %w", err), s.driver.leases.Resize(before))
	}
	t.own.holdings.Store(&after.Holdings)
	share := describeShare(spec.Share{Holdings: after.Holdings})
	s.driver.emit(t.cfg, "the task has changed its GPU share: "+share, map[string]string{gpu.ComputeDetail: strconv.FormatInt(h.GuaranteeMilli, 10)})
	if _, _, _, found := namespaced(n, after); found {
		return share + "; it holds from now on", nil
	}
	return share + later(h, before.Holdings[0], state.Sharing), nil
}

// holdsLess refuses a limit of memory for which the watchdog would kill the task.
func (s selfOf) holdsLess(h gpu.Holding) error {
	status, err := s.status()
	if err != nil || len(status.GPUs) != 1 {
		return errors.Join(errors.New("resize: it is not known what the task uses now"), err)
	}
	if use := status.GPUs[0].Use; use != nil && use.MemoryMiB > h.MostMiB() && h.MostMiB() < status.GPUs[0].Share.MostMiB() {
		return fmt.Errorf("resize: memory_limit: %s is not valid on GPU %s (the task uses %s now)", gpu.FormatMemory(h.MostMiB()), h.UUID, gpu.FormatMemory(use.MemoryMiB))
	}
	return nil
}

// limitNow has NVIDIA's driver hold the task's control group to another limit.
func limitNow(ctx context.Context, l gpu.Lease, state gpu.GPUState, before gpu.Holding) error {
	h := l.Holdings[0]
	if h.MostMiB() == before.MostMiB() {
		return nil
	}
	if state.Limiter == nil {
		return errors.New("the device plugin names no program for that")
	}
	group, err := cgroups.Dir(cgroups.Of(l))
	if err != nil {
		return err
	}
	return runLimiter(ctx, state.Limiter.Command, h.UUID, group, strconv.FormatInt(h.MemoryMiB, 10), strconv.FormatInt(h.MostMiB(), 10))
}

// later says what takes effect only for programs that start from now on.
func later(h, before gpu.Holding, sharing gpu.Sharing) string {
	env, was := spec.LaterEnv(h, sharing), spec.LaterEnv(before, sharing)
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if env[key] != was[key] {
			lines = append(lines, key+"="+env[key])
		}
	}
	if len(lines) == 0 {
		return "; it holds from now on"
	}
	return "; the guarantee holds from now on, and programs that run keep their limits: those that are started with these variables have the new ones: " + strings.Join(lines, " ")
}
