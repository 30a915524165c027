// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
)

// withRootfs does what needs the container's own root directory, which holds what
// the image's author put there: it chooses users from the image's files, adds CDI
// devices, and last finds the places of all mounts. The directory is mounted once,
// and nothing else can change it.
func withRootfs(n NewContainer) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
		mounts, err := client.SnapshotService(c.Snapshotter).Mounts(ctx, c.SnapshotKey)
		if err != nil {
			return fmt.Errorf("look into the image: %w", err)
		}
		var problem error
		err = mount.WithReadonlyTempMount(ctx, mounts, func(root string) error {
			problem = n.fitInto(ctx, client, c, s, root)
			return nil
		})
		return errors.Join(problem, err)
	}
}

func (n NewContainer) fitInto(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec, root string) error {
	if err := plainUserFiles(root); err != nil {
		return err
	}
	options := userOptions(n)
	if n.CDI != nil {
		options = append(options, n.CDI)
	}
	for _, option := range options {
		if err := option(ctx, client, c, s); err != nil {
			return err
		}
	}
	if n.Place == nil {
		return nil
	}
	return n.Place(root, s)
}

// userFiles are where an image says who its users are.
var userFiles = []string{"etc/passwd", "etc/group"}

// plainUserFiles refuses an image whose user files are no regular files, before
// anything opens them: opening a pipe would wait for ever.
func plainUserFiles(root string) error {
	dir, err := rooted.OpenHost(root)
	if err != nil {
		return fmt.Errorf("look for the image's users: %w", err)
	}
	defer dir.Close()
	for _, name := range userFiles {
		file, err := dir.Resolve(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for the image's users: %w", err)
		}
		_ = file.Close()
		if !file.IsRegular() {
			return fmt.Errorf("the image's %s is not a regular file", name)
		}
	}
	return nil
}

// named makes an option's error name the option.
func named(what string, option oci.SpecOpts) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
		if err := option(ctx, client, c, s); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
}
