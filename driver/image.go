package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distribution/reference"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// image returns the task's image, ready to run: from an archive in the task
// directory, from containerd as it is, or pulled.
func (d *Driver) image(ctx context.Context, client *runtime.Runtime, cfg *drivers.TaskConfig, config spec.Config) (runtime.Image, error) {
	if archive := config.ImageArchive(); archive != "" {
		return importArchive(ctx, client, cfg, config, archive)
	}
	named, err := reference.ParseDockerRef(config.Image)
	if err != nil {
		return runtime.Image{}, fmt.Errorf("image %q is not a reference: %w", config.Image, err)
	}
	if !config.ForcePull {
		image, err := client.Image(ctx, named.String(), config.Snapshotter)
		// What was pulled with a login is there for those who have the
		// same login; the registry says who else may have it.
		mayUse := err == nil && (image.Access() == "" || image.Access() == accessOf(config.Auth))
		if mayUse || err != nil && !errors.Is(err, runtime.ErrNoImage) {
			return image, err
		}
	}
	return d.pull(ctx, client, cfg, config, named)
}

func importArchive(ctx context.Context, client *runtime.Runtime, cfg *drivers.TaskConfig, config spec.Config, archive string) (runtime.Image, error) {
	handle, err := openTaskFile(cfg, archive)
	if err != nil {
		return runtime.Image{}, fmt.Errorf("image: %w", err)
	}
	defer handle.Close()
	if !handle.IsRegular() {
		return runtime.Image{}, fmt.Errorf("image %q: %w", archive, rooted.ErrKind)
	}
	f, err := handle.Open()
	if err != nil {
		return runtime.Image{}, fmt.Errorf("image %q: %w", archive, err)
	}
	defer f.Close()
	image, err := client.Import(ctx, f, config.Snapshotter)
	if err != nil {
		return runtime.Image{}, fmt.Errorf("image %q: %w", archive, err)
	}
	return image, nil
}

// finalPullErrors are those that trying again does not help.
var finalPullErrors = []error{runtime.ErrPullMissing, runtime.ErrPullDenied, runtime.ErrImageTooLarge, runtime.ErrLayerKind, runtime.ErrNotPossessed}

// pull fetches an image. A registry that fails now may answer later, so its
// errors are recoverable; what it refuses or lacks it will not have later.
func (d *Driver) pull(ctx context.Context, client *runtime.Runtime, cfg *drivers.TaskConfig, config spec.Config, named reference.Named) (runtime.Image, error) {
	ref := named.String()
	idle, err := config.PullTimeout()
	if err != nil {
		return runtime.Image{}, err
	}
	d.emit(cfg, "Pulling image "+ref, nil)
	n, err := d.configured()
	if err != nil {
		return runtime.Image{}, err
	}
	credentials := credentialsFor(config.Auth, reference.Domain(named), n.settings.Registries, n.settings.Auth)
	key := fmt.Sprintf("%q", []string{ref, config.Snapshotter, config.Auth.Username, config.Auth.Password, config.Auth.ServerAddress})
	begin := time.Now()
	image, err := client.PullShared(ctx, key, runtime.Pull{
		Ref: ref, Snapshotter: config.Snapshotter, Credentials: credentials, IdleTimeout: idle, Access: accessOf(config.Auth),
		Progress: func(received int64) {
			d.emit(cfg, fmt.Sprintf("Pulling image %s: %d MiB received", ref, received>>20), nil)
		},
	})
	d.counts.pull(err, time.Since(begin))
	if err != nil {
		final := slices.ContainsFunc(finalPullErrors, func(reason error) bool { return errors.Is(err, reason) })
		return runtime.Image{}, structs.NewRecoverableError(err, !final)
	}
	return image, nil
}
