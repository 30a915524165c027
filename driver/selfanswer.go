// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/driver/self"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Answer answers a request, whose form is valid.
func (s selfOf) Answer(ctx context.Context, r gpu.SelfRequest) gpu.SelfAnswer {
	message, err := s.do(ctx, r)
	if err != nil {
		return gpu.SelfAnswer{Error: err.Error()}
	}
	status, err := s.status()
	if err != nil {
		// The request is carried out all the same.
		return gpu.SelfAnswer{Message: strings.TrimSpace(message + " (the task's status is not known: " + err.Error() + ")")}
	}
	return gpu.SelfAnswer{Message: message, Status: &status}
}

func (s selfOf) do(ctx context.Context, r gpu.SelfRequest) (message string, err error) {
	switch r.Action {
	case gpu.SelfYield:
		return s.wish(seats.WishYield, "the task leaves its GPU within a few seconds, and comes back when it says want, or by itself after a while")
	case gpu.SelfResizeAction:
		return s.resize(ctx, *r.Resize)
	case gpu.SelfSaved:
		return s.task.saved.note(time.Now(), s.driver.savedEvery, s.tellSaved), nil
	case gpu.SelfWant:
		return s.wish(seats.WishWant, "the task comes back to its GPU when its turn comes, or stays on it")
	}
	return "", nil
}

// wish passes yield or want on to the controller of the task's seat.
func (s selfOf) wish(w seats.Wish, message string) (string, error) {
	lease := s.task.record.Lease
	for _, h := range lease.Holdings {
		if h.SeatMiB == 0 {
			return "", fmt.Errorf("action: %q is not valid on GPU %s (it is for GPUs whose tasks step aside for each other, sharing = %q)", w, h.UUID, gpu.SharingSuspend)
		}
	}
	s.driver.seats.ask(lease.ID, w)
	return message, nil
}

// tellSaved tells Nomad, and through it the placement service.
func (s selfOf) tellSaved(at time.Time) {
	s.driver.emit(s.task.cfg, "the task says that its work is on disk as of "+at.UTC().Format(time.RFC3339), map[string]string{gpu.SavedDetail: at.UTC().Format(time.RFC3339Nano)})
}

// serveSelf answers what a task asks, until it has ended.
func (d *Driver) serveSelf(ctx context.Context, t *task) {
	n, err := d.configured()
	if err != nil || len(t.record.Lease.Holdings) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	socket, err := self.Listen(newSelfDirs(n.settings).of(t.container.ID), selfOf{d, t})
	if errors.Is(err, fs.ErrNotExist) {
		return // the task was started without one
	}
	if err != nil {
		t.logger.Warn("the task cannot ask about its GPU: its socket could not be made", "error", err)
		return
	}
	go func() {
		select {
		case <-t.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	socket.Serve(ctx)
	d.seats.asked(t.record.Lease.ID, true) // its request ends with it
	t.saved.stop()
}
