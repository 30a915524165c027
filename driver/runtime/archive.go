// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// archivePrefix starts the names of images that came from archives.
const archivePrefix = taskconfig.ArchiveDomain + "/archive@"

// Import brings in the one image of a tar, compressed or not: an OCI image layout or what "docker
// save" writes. It is called by its digest, never by the name in the archive:
// otherwise a task could pass off its own image as another's. All of it must
// be in the tar: otherwise a task could run another's image by its digests.
func (r *Runtime) Import(ctx context.Context, tar io.Reader, snapshotter string) (_ Image, err error) {
	ctx, done, err := r.protect(r.with(ctx))
	if err != nil {
		return Image{}, fmt.Errorf("import image archive: %w", err)
	}
	defer func() { done(err) }()
	store := newArchiveStore(r.client.ContentStore())
	index, err := r.importIndex(ctx, store, tar)
	if err != nil {
		return Image{}, fmt.Errorf("import image archive: %w", err)
	}
	manifest, err := onlyManifest(ctx, store, index)
	if err != nil {
		return Image{}, fmt.Errorf("import image archive: %w", err)
	}
	handler := images.Handlers(store, images.SetChildrenLabels(store, images.FilterPlatforms(images.ChildrenHandler(store), platforms.Default())))
	if err := images.WalkNotEmpty(ctx, handler, manifest); err != nil {
		return Image{}, fmt.Errorf("import image archive: %w", err)
	}
	image := images.Image{
		Name: archivePrefix + manifest.Digest.String(), Target: manifest,
		Labels: map[string]string{managedLabel: "true"},
	}
	handle := client.NewImage(r.client, image)
	if err := r.unpack(ctx, handle, r.snapshotter(snapshotter)); err != nil {
		return Image{}, err
	}
	if err := r.verifyLayers(ctx, handle); err != nil {
		return Image{}, fmt.Errorf("import image archive: %w", err)
	}
	stored, err := r.client.ImageService().Create(ctx, image)
	if errdefs.IsAlreadyExists(err) {
		stored, err = image, nil // the same content by the same name
	}
	if err != nil {
		return Image{}, fmt.Errorf("import image archive: %w", err)
	}
	return r.ready(ctx, client.NewImage(r.client, stored), snapshotter)
}

// importIndex writes an archive's blobs to containerd, and returns its index.
func (r *Runtime) importIndex(ctx context.Context, store content.Store, tar io.Reader) (ispec.Descriptor, error) {
	give, err := r.unpackPlace(ctx)
	if err != nil {
		return ispec.Descriptor{}, err
	}
	defer give()
	plain, err := decompress(tar)
	if err != nil {
		return ispec.Descriptor{}, err
	}
	defer plain.Close()
	bounded := r.boundedTar(plain)
	defer bounded.Close()
	return archive.ImportIndex(ctx, store, bounded)
}

// onlyManifest returns the image that an archive's index names. It may be a
// further index, of one image for several platforms.
func onlyManifest(ctx context.Context, store content.Store, desc ispec.Descriptor) (ispec.Descriptor, error) {
	if err := checkDescriptions(ctx, store, desc); err != nil {
		return ispec.Descriptor{}, err
	}
	text, err := content.ReadBlob(ctx, store, desc)
	if err != nil {
		return ispec.Descriptor{}, err
	}
	var index ispec.Index
	if err := json.Unmarshal(text, &index); err != nil {
		return ispec.Descriptor{}, err
	}
	// An image that was saved under several names is there once for each.
	different := map[digest.Digest]bool{}
	for _, manifest := range index.Manifests {
		different[manifest.Digest] = true
	}
	if len(different) != 1 {
		return ispec.Descriptor{}, fmt.Errorf("it holds %d images, want one", len(different))
	}
	return index.Manifests[0], nil
}
