// SPDX-License-Identifier: MPL-2.0

// Package reserve says what a reservation is: GPU room that is kept free until
// a job claims it, it is released, or it expires.
//
//	allocate ── Want ──► Keeper ──► view.Hold ──┬─ claimed by a job's meta gpu_reservation
//	                                            ├─ Release
//	                                            └─ expires
//
// The REST API asks; the decider keeps, because only it knows what is on its
// way to Nomad. A reservation must survive the service, so a Keeper writes it
// down before it answers.
package reserve

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// ErrNotFound is wrapped when no reservation of that ID is held.
var ErrNotFound = errors.New("no such reservation")

// Instead is a refusal of what there is no room or no quota for now, with the largest
// amount of the same that there is.
type Instead struct {
	*admit.Refusal
	Fits view.Fits
}

// NewInstead adds to a refusal what would fit, to the details too.
func NewInstead(r *admit.Refusal, f view.Fits) *Instead {
	more := *r
	more.Details = append(slices.Clone(r.Details), f.Text())
	return &Instead{&more, f}
}

// Unwrap is the refusal.
func (i *Instead) Unwrap() error { return i.Refusal }

// Want is what a caller wants to reserve.
type Want struct {
	Namespace string
	// Queue pays; empty: the one of the namespace.
	Queue string
	// Owner is a free text that tells people whose it is.
	Owner   string
	Request gpu.Request
	// MinMemoryMiB is the least memory of each card, for whole GPUs.
	MinMemoryMiB int64
	// Close asks for GPUs that reach each other fast.
	Close bool
	// For is how long the room is held.
	For time.Duration
}

// Keeper holds room. A refusal is an *admit.Refusal, with a 4xx status, or wraps one (Instead).
type Keeper interface {
	// Reserve holds room for a want, on one node. With dryRun it only says
	// where: nothing is held and the hold has no ID.
	Reserve(ctx context.Context, w Want, dryRun bool) (view.Hold, error)
	// Held returns a hold as it is now, ErrNotFound when it is over.
	Held(id string) (view.Hold, error)
	// All lists the present holds, by ID.
	All() []view.Hold
	// Release gives a hold's room back. What a job has claimed stays with the
	// job.
	Release(ctx context.Context, id string) error
}
