package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
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

// mend makes a container of an image whose layers are not unpacked any more, or
// after containerd left a directory. One start does this at a time: what it
// removes and unpacks, all of them need.
func (r *Runtime) mend(ctx context.Context, image Image, create func() (client.Container, error)) (client.Container, error) {
	r.mending.Lock()
	defer r.mending.Unlock()
	handle, err := create()
	if leftDirectory(err) {
		if clearErr := r.removeLastLayer(ctx, image); clearErr != nil {
			return nil, errors.Join(err, clearErr)
		}
		r.log.Warnf("image %q is unpacked again, so that containerd removes a directory that it left when it died: %v", image.Name, err)
	} else if !errdefs.IsNotFound(err) {
		return handle, err // another start has mended it
	}
	r.forget(image.Digest)
	if err := r.unpack(ctx, image.handle, image.snapshotter); err != nil {
		return nil, err
	}
	return create()
}

// removeLastLayer removes an image's last layer, if it can be unpacked again, and
// waits until containerd has looked for directories without a snapshot. It fails
// where a container has the layer: its end does the same.
func (r *Runtime) removeLastLayer(ctx context.Context, image Image) error {
	available, _, _, missing, err := images.Check(ctx, r.client.ContentStore(), image.handle.Target(), image.handle.Platform())
	if err != nil {
		return fmt.Errorf("look for the contents of image %q: %w", image.Name, err)
	}
	if !available || len(missing) > 0 {
		return fmt.Errorf("containerd must clean up, which the next end of a container brings about: image %q is not there to be unpacked again", image.Name)
	}
	layers, err := image.handle.RootFS(ctx)
	if err != nil {
		return fmt.Errorf("read the layers of image %q: %w", image.Name, err)
	}
	last := identity.ChainID(layers).String()
	if err := r.client.SnapshotService(image.snapshotter).Remove(ctx, last); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("containerd must clean up, which the next end of a container brings about: remove layer %s: %w", last, err)
	}
	// Containerd collects its garbage before it answers.
	service := r.client.LeasesService()
	lease, err := service.Create(ctx, leases.WithRandomID(), leases.WithLabels(r.ownerLabels()))
	if err == nil {
		err = service.Delete(ctx, lease, leases.SynchronousDelete)
	}
	if err != nil {
		return fmt.Errorf("let containerd clean up: %w", err)
	}
	return nil
}
