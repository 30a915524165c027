package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	securejoin "github.com/cyphar/filepath-securejoin"
)

// userFiles are where an image says who its users are.
var userFiles = []string{"etc/passwd", "etc/group"}

// plainUserFiles refuses an image whose user files are no regular files, before
// anything opens them: opening a pipe would wait for ever.
func plainUserFiles(ctx context.Context, client oci.Client, c *containers.Container, _ *oci.Spec) error {
	mounts, err := client.SnapshotService(c.Snapshotter).Mounts(ctx, c.SnapshotKey)
	if err != nil {
		return fmt.Errorf("look for the image's users: %w", err)
	}
	return mount.WithReadonlyTempMount(ctx, mounts, func(root string) error {
		for _, name := range userFiles {
			path, err := securejoin.SecureJoin(root, name)
			if err != nil {
				return fmt.Errorf("look for the image's users: %w", err)
			}
			info, err := os.Lstat(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("look for the image's users: %w", err)
			}
			if !info.Mode().IsRegular() {
				return fmt.Errorf("the image's %s is not a regular file", name)
			}
		}
		return nil
	})
}

// named makes an option's error say what it is about.
func named(what string, option oci.SpecOpts) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, c *containers.Container, s *oci.Spec) error {
		if err := option(ctx, client, c, s); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}
}
