// SPDX-License-Identifier: MPL-2.0

package api

import (
	"context"
	"errors"
)

// Gate asks Nomad what the holder of a token may do. With ACLs off Nomad lets
// everybody do everything, and so does the Gate; the empty token is the
// anonymous one.
type Gate interface {
	// MayRead is for the nodes, and the work on them.
	MayRead(ctx context.Context, token string) error
	// MayReadNamespace is for the names of jobs in a namespace.
	MayReadNamespace(ctx context.Context, token, namespace string) error
	// MaySubmit is for reserving room for a namespace, and giving it back.
	MaySubmit(ctx context.Context, token, namespace string) error
}

// Errors that a Gate wraps.
var (
	// ErrDenied is Nomad's no.
	ErrDenied = errors.New("permission denied")
	// ErrNoNamespace is when there is no such namespace.
	ErrNoNamespace = errors.New("no such namespace")
	// ErrNoAnswer is when Nomad could not be asked.
	ErrNoAnswer = errors.New("nomad does not answer")
)
