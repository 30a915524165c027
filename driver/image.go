// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/distribution/reference"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// image returns the task's image, ready to run: from an archive in the task
// directory, from containerd as it is, or pulled.
func (d *Driver) image(ctx context.Context, env environment, cfg *drivers.TaskConfig, config taskconfig.Config) (image runtime.Image, err error) {
	ctx = runtime.WithTenant(ctx, cfg.Namespace, cfg.JobID)
	if archive := config.ImageArchive(); archive != "" {
		err := inImageTime(ctx, env, func(ctx context.Context) error {
			image, err = importArchive(ctx, env.runtime, cfg, config, archive)
			return err
		})
		return image, err
	}
	named, err := reference.ParseDockerRef(config.Image)
	if err != nil {
		return runtime.Image{}, fmt.Errorf("image %q is not a reference: %w", config.Image, err)
	}
	if image, found, err := presentImage(ctx, env, config, named); found || err != nil {
		return image, err
	}
	// A start that waits for a registry keeps no other from starting.
	err = d.starts.aside(ctx, cfg, func() error {
		give, err := d.starts.pulls.Take(ctx, cfg.Namespace, cfg.JobID)
		if err != nil {
			return err
		}
		defer give()
		var found bool
		if image, found, err = presentImage(ctx, env, config, named); found || err != nil {
			return err // another start has pulled it meanwhile
		}
		return inImageTime(ctx, env, func(ctx context.Context) error {
			image, err = d.pull(ctx, env, cfg, config, named)
			return err
		})
	})
	return image, err
}

// presentImage returns an image that containerd has, where the task may use that.
func presentImage(ctx context.Context, env environment, config taskconfig.Config, named reference.Named) (image runtime.Image, found bool, err error) {
	if config.ForcePull {
		return runtime.Image{}, false, nil
	}
	err = inImageTime(ctx, env, func(ctx context.Context) error {
		image, err = env.runtime.Image(ctx, named.String(), config.Snapshotter)
		return err
	})
	if errors.Is(err, runtime.ErrNoImage) {
		return runtime.Image{}, false, nil
	}
	// What was pulled with a login is there for those who have the same login; the
	// registry says who else may have it.
	return image, err == nil && (image.Access() == "" || image.Access() == accessOf(config.Auth)), err
}

// inImageTime does a part of getting an image, which the operator bounds.
func inImageTime(ctx context.Context, env environment, do func(context.Context) error) error {
	limit := env.settings.ImageTimeLimit
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("getting the image took longer than image_timeout, %s", limit))
	defer cancel()
	err := do(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return structs.NewRecoverableError(errors.Join(context.Cause(ctx), err), true)
	}
	return err
}

// unpacked is why an archive is often not where the author expects it.
const unpacked = `Nomad unpacks what an artifact block fetches, unless the block has options { archive = "false" }`

func importArchive(ctx context.Context, client *runtime.Runtime, cfg *drivers.TaskConfig, config taskconfig.Config, archive string) (runtime.Image, error) {
	handle, err := openTaskFile(cfg, archive)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w (%s)", err, unpacked)
	}
	if err != nil {
		return runtime.Image{}, fmt.Errorf("image: %w", err)
	}
	defer handle.Close()
	if handle.IsDir() {
		return runtime.Image{}, fmt.Errorf("image %q: %w but a directory (%s)", archive, rooted.ErrKind, unpacked)
	}
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
// errors are recoverable; its refusals, and images that it lacks, are final.
func (d *Driver) pull(ctx context.Context, env environment, cfg *drivers.TaskConfig, config taskconfig.Config, named reference.Named) (runtime.Image, error) {
	ref := named.String()
	idle, err := config.PullTimeout(env.settings.Policy)
	if err != nil {
		return runtime.Image{}, err
	}
	d.emit(cfg, "Pulling image "+ref, nil)
	credentials := credentialsFor(config.Auth, reference.Domain(named), env.settings.Registries, env.settings.Auth)
	key := fmt.Sprintf("%q", []string{ref, config.Snapshotter, config.Auth.Username, config.Auth.Password, config.Auth.ServerAddress})
	begin := time.Now()
	image, err := env.runtime.PullShared(ctx, key, runtime.Pull{
		Ref: ref, Snapshotter: config.Snapshotter, Credentials: credentials, IdleTimeout: idle, Access: accessOf(config.Auth),
		Progress: func(received int64) {
			d.emit(cfg, fmt.Sprintf("Pulling image %s: %d MiB received", ref, received>>20), nil)
		},
	})
	d.counts.pull(err, time.Since(begin))
	if err != nil {
		err = explainDenied(err, credentials, config.Auth, reference.Domain(named))
		final := slices.ContainsFunc(finalPullErrors, func(reason error) bool { return errors.Is(err, reason) })
		return runtime.Image{}, structs.NewRecoverableError(err, !final)
	}
	return image, nil
}
