package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
)

// A containerd that dies between making a snapshot's directory and recording it
// gives the next snapshot the same number, finds the directory there, and refuses
// every snapshot from then on. It looks for such directories only after another
// snapshot was removed.

// leftDirectory reports whether an error says that.
func leftDirectory(err error) bool {
	// Containerd tells it in words only; which ones depends on the file system.
	return err != nil && strings.Contains(err.Error(), "failed to rename: ") &&
		(strings.Contains(err.Error(), "file exists") || strings.Contains(err.Error(), "directory not empty"))
}

// clearSnapshotter lets containerd look for directories without a snapshot, by
// removing the image's last layer, which can be unpacked again. The error says
// that it is not found, or repeats the cause where another container needs the
// layer: the end of that one does the same.
func (r *Runtime) clearSnapshotter(ctx context.Context, image Image, cause error) error {
	layers, err := image.handle.RootFS(ctx)
	if err != nil {
		return errors.Join(cause, fmt.Errorf("read the layers of image %q: %w", image.Name, err))
	}
	top := identity.ChainID(layers).String()
	if err := r.client.SnapshotService(image.snapshotter).Remove(ctx, top); err != nil {
		return errors.Join(cause, fmt.Errorf("let containerd clean up: remove layer %s: %w", top, err))
	}
	service := r.client.LeasesService()
	lease, err := service.Create(ctx, leases.WithRandomID(), leases.WithLabels(r.ownerLabels()))
	if err != nil {
		return errors.Join(cause, fmt.Errorf("let containerd clean up: %w", err))
	}
	if err := service.Delete(ctx, lease, leases.SynchronousDelete); err != nil {
		return errors.Join(cause, fmt.Errorf("let containerd clean up: %w", err))
	}
	r.log.Warnf("containerd removed a directory that it had left when it died: %v", cause)
	return fmt.Errorf("layer %s: %w", top, errdefs.ErrNotFound)
}
