// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/spec"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/mpsctl"
)

// Under static partitioning a task has a partition of its GPU's multiprocessors, which
// is made before its container and removed when all its processes are dead. Its lease
// says which it is. What a driver that was killed in between has left belongs to no
// lease, and is removed before the next partition of the device is made.

const (
	// partitionWait is how long an MPS server may take to see that a task's programs
	// have ended, partitionPoll how often to look.
	partitionWait = 3 * time.Second
	partitionPoll = 100 * time.Millisecond
	// partitionAnswer is how long the daemon may take for one answer.
	partitionAnswer = 10 * time.Second
)

// partitioned is the holding of a task that has a partition, or is to get one; nil for
// other tasks. A task with one part of a GPU has no other device.
func partitioned(l gpu.Lease) *gpu.Holding {
	for i := range l.Holdings {
		if l.Holdings[i].Partition != nil {
			return &l.Holdings[i]
		}
	}
	return nil
}

// takePartition makes the partition that a task is to have.
func (d *Driver) takePartition(ctx context.Context, p *startPlan) error {
	h := partitioned(p.record.Lease)
	if h == nil {
		return nil
	}
	notReady := func(err error) error {
		return &spec.NotReadyError{UUID: h.UUID, Reason: "the task gets no multiprocessors of its own: " + err.Error()}
	}
	d.partitions.Lock()
	defer d.partitions.Unlock()
	c, err := controlOf(p.env, *h)
	if err != nil {
		return notReady(err)
	}
	now, err := c.Partitions(ctx)
	if err != nil {
		return notReady(err)
	}
	leases, err := p.env.state.Leases()
	if err != nil {
		return notReady(err)
	}
	for _, left := range now.All {
		if left.Used || heldPartition(*h, left.ID, "", leases) {
			continue
		}
		d.logger.Info("removing a partition that no task has", "gpu", h.UUID, "partition", left.ID)
		if err := c.RemovePartition(ctx, h.UUID, left.ID); err != nil {
			d.logger.Warn("a partition that no task has stays", "gpu", h.UUID, "error", err)
		}
	}
	id, err := c.AddPartition(ctx, h.UUID, h.Partition.Chunks)
	if errors.Is(err, mpsctl.ErrNoRoom) {
		return notReady(fmt.Errorf("its guarantee of %s takes %d of the GPU's %d chunks of multiprocessors, and other tasks have %d; it is tried again under the group's restart block",
			gpu.FormatMilli(h.GuaranteeMilli), h.Partition.Chunks, now.Chunks, gpu.ChunksOn(h.UUID, leases)-h.Partition.Chunks))
	}
	if err != nil {
		return notReady(err)
	}
	h.Partition = &gpu.Partition{ID: id, Chunks: h.Partition.Chunks}
	p.share.SetPartition(h.UUID, id)
	return d.leases.Write(p.record.Lease)
}

// returnPartition removes a task's partition, when its processes are dead. One that
// stays is removed before the next is made.
func (d *Driver) returnPartition(ctx context.Context, n environment, l gpu.Lease) {
	h := partitioned(l)
	if h == nil || h.Partition.ID == "" {
		return
	}
	limit := time.After(partitionWait)
	for {
		err := d.removePartition(ctx, n, *h, l.Container)
		if err == nil {
			return
		}
		select {
		case <-time.After(partitionPoll):
			continue
		case <-limit:
		case <-ctx.Done():
		}
		d.logger.Warn("a partition of multiprocessors stays until the next task of the GPU starts", "gpu", h.UUID, "container", l.Container, "error", err)
		return
	}
}

// removePartition removes the partition of a container, unless it is another's by now or
// ended with its daemon.
func (d *Driver) removePartition(ctx context.Context, n environment, h gpu.Holding, container string) error {
	d.partitions.Lock()
	defer d.partitions.Unlock()
	leases, err := n.state.Leases()
	if err != nil {
		return err
	}
	if heldPartition(h, h.Partition.ID, container, leases) {
		return nil
	}
	c, err := controlOf(n, h)
	if err != nil {
		return nil
	}
	return c.RemovePartition(ctx, h.UUID, h.Partition.ID)
}

// heldPartition reports whether a live lease, but for that of one container, names a
// partition of a device.
func heldPartition(of gpu.Holding, id, but string, leases []gpu.Lease) bool {
	return slices.ContainsFunc(leases, func(l gpu.Lease) bool {
		h := partitioned(l)
		return l.Live() && l.Container != but && h != nil && h.UUID == of.UUID && h.MPSGeneration == of.MPSGeneration && h.Partition.ID == id
	})
}

// controlOf is how to reach the daemon that a task's holding is of.
func controlOf(n environment, h gpu.Holding) (mpsctl.Control, error) {
	s, err := n.state.GPU(h.UUID)
	switch {
	case err != nil:
		return mpsctl.Control{}, err
	case s.MPS == nil || s.MPS.Generation != h.MPSGeneration:
		return mpsctl.Control{}, errors.New("its MPS daemon was replaced")
	}
	return mpsctl.Control{Program: s.MPS.Control, PipeDir: s.MPS.CommandDir(), Timeout: partitionAnswer}, nil
}
