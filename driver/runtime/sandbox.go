// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/sandbox"
	"github.com/containerd/errdefs"
)

// A container of ours is no sandbox. But containerd 2, when it starts and finds
// a shim whose process has ended, cleans it away and with it the exit code,
// unless a sandbox record of the same ID exists. So there is one, as long as the
// container. Containerd 1 keeps such shims anyway and has no sandbox records.

func (r *Runtime) createSandbox(ctx context.Context, n NewContainer) error {
	_, err := r.client.SandboxStore().Create(ctx, sandbox.Sandbox{
		ID: n.ID, Labels: r.ownerLabels(), Runtime: sandbox.RuntimeOpts{Name: n.Runtime}, Sandboxer: "shim",
	})
	if err != nil && !errdefs.IsAlreadyExists(err) && !errdefs.IsNotImplemented(err) {
		return fmt.Errorf("record sandbox of container %s: %w", n.ID, err)
	}
	return nil
}

func (r *Runtime) removeSandbox(ctx context.Context, id string) error {
	err := r.client.SandboxStore().Delete(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsNotImplemented(err) {
		return fmt.Errorf("remove sandbox record of container %s: %w", id, err)
	}
	return nil
}
