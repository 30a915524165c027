// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
)

// retryDelay paces attempts, such as to reach a containerd that is away.
const retryDelay = time.Second

// pause waits between two attempts, and reports whether ctx lasts.
func pause(ctx context.Context, delay time.Duration) bool {
	select {
	case <-time.After(delay):
		return true
	case <-ctx.Done():
		return false
	}
}

// callTimeout bounds a single short request to containerd.
const callTimeout = 30 * time.Second

// awayTimeout is how long what ends a task waits for a containerd that is away: long
// enough for one that is being restarted.
const awayTimeout = 10 * time.Second

// retryTransient repeats a call as long as containerd is away, or has not noticed that a
// shim died, and ctx lasts. It returns the last error.
func retryTransient(ctx context.Context, call func() error) error {
	for {
		err := call()
		if err == nil || !runtime.Transient(err) {
			return err
		}
		if !pause(ctx, retryDelay) {
			return err
		}
	}
}

// startTimeout bounds what containerd is asked for when a task starts, apart
// from the image.
const startTimeout = 2 * time.Minute
