// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// What describes an image is read into the memory of this process, as a whole, and
// its size is the author's choice. Layers are not read here.

const (
	// maxDescription is how large a manifest, an index or a configuration may be. Those of
	// real images have some kilobytes. In memory it takes up to 43 times that.
	maxDescription = 512 << 10
	// maxLayers is how many layers an image may have: as many as Docker builds, and overlay
	// mounts, at most.
	maxLayers = 127
)

// ErrImageTooLarge means that an image is not what images are.
var ErrImageTooLarge = errors.New("the image is refused")

func checkDescription(desc ispec.Descriptor, size int64) error {
	if size > maxDescription {
		return fmt.Errorf("%w: what describes it, %s, has %d bytes, and %d are allowed", ErrImageTooLarge, desc.MediaType, size, maxDescription)
	}
	return nil
}

// boundedHandler refuses, before it is fetched, what describes an image and is too
// large, an image that is larger than the operator's limit, 0 for none, and one that
// cannot be unpacked. A manifest's first child is its configuration, whatever it says of
// itself.
func (r *Runtime) boundedHandler(next images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ispec.Descriptor) ([]ispec.Descriptor, error) {
		if !images.IsLayerType(desc.MediaType) {
			if err := checkDescription(desc, desc.Size); err != nil {
				return nil, err
			}
		}
		children, err := next.Handle(ctx, desc)
		if err == nil && images.IsManifestType(desc.MediaType) && len(children) > 0 {
			err = errors.Join(checkDescription(children[0], children[0].Size), r.checkSize(children), checkKinds(children), checkCount(children[1:]))
		}
		return children, err
	})
}

// checkCount refuses an image of too many layers.
func checkCount(layers []ispec.Descriptor) error {
	if len(layers) > maxLayers {
		return fmt.Errorf("%w: it has %d layers, and %d are allowed", ErrImageTooLarge, len(layers), maxLayers)
	}
	return nil
}

// checkSize refuses an image whose parts are too large together, as they are fetched.
func (r *Runtime) checkSize(parts []ispec.Descriptor) error {
	var size int64
	for _, part := range parts {
		if size += part.Size; r.above(size) {
			return r.tooLarge()
		}
	}
	return nil
}

// above reports whether a size, which may have overflowed, is above the limit.
func (r *Runtime) above(size int64) bool {
	return r.config.MaxImageBytes > 0 && (size > r.config.MaxImageBytes || size < 0)
}

func (r *Runtime) tooLarge() error {
	return fmt.Errorf("%w: it is larger than the %d MiB that this node's operator allows (max_image_size)", ErrImageTooLarge, r.config.MaxImageBytes>>20)
}

// checkDescriptions refuses an image that containerd holds, by the sizes that its
// blobs really have, before any of them is read. A missing blob is not read either.
func checkDescriptions(ctx context.Context, store content.Store, target ispec.Descriptor) error {
	check := func(ctx context.Context, desc ispec.Descriptor) error {
		info, err := store.Info(ctx, desc.Digest)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("inspect image: %w", err)
		}
		return checkDescription(desc, info.Size)
	}
	seen := map[digest.Digest]bool{}
	return images.Walk(ctx, images.HandlerFunc(func(ctx context.Context, desc ispec.Descriptor) ([]ispec.Descriptor, error) {
		if images.IsLayerType(desc.MediaType) || seen[desc.Digest] {
			return nil, nil
		}
		seen[desc.Digest] = true
		if err := check(ctx, desc); err != nil {
			return nil, err
		}
		children, err := images.Children(ctx, store, desc)
		if errdefs.IsNotFound(err) {
			return nil, nil
		}
		if err == nil && images.IsManifestType(desc.MediaType) {
			return nil, check(ctx, children[0]) // its configuration, which each has
		}
		return children, err
	}), target)
}

// maxArchiveEntries is how many files an archive may hold: a few for each layer.
const maxArchiveEntries = 10000

// descriptions are the files of an archive that are read into memory as they come.
var descriptions = map[string]bool{"manifest.json": true, "index.json": true, "oci-layout": true, "repositories": true}

// boundedTar passes a tar on, and ends it with an error when a file that describes
// the image is too large, or there are too many files. Whoever reads it must close
// it, and gets the error from reading. Nothing reads the tar itself after that.
func (r *Runtime) boundedTar(archive io.Reader) io.ReadCloser {
	out, in := io.Pipe()
	b := &boundedArchive{PipeReader: out, over: make(chan struct{})}
	go func() {
		defer close(b.over)
		_ = in.CloseWithError(r.copyBounded(in, archive))
	}()
	return b
}

type boundedArchive struct {
	*io.PipeReader
	over chan struct{}
}

func (b *boundedArchive) Close() error {
	err := b.PipeReader.Close()
	<-b.over
	return err
}

func (r *Runtime) copyBounded(w io.Writer, archive io.Reader) error {
	from, to := tar.NewReader(archive), tar.NewWriter(w)
	var size int64
	for entries := 0; ; entries++ {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			return to.Close()
		}
		if err != nil {
			return fmt.Errorf("read image archive: %w", err)
		}
		if entries == maxArchiveEntries {
			return fmt.Errorf("%w: the archive holds more than %d files", ErrImageTooLarge, maxArchiveEntries)
		}
		if descriptions[nameOf(header)] && header.Size > maxDescription {
			return fmt.Errorf("%w: %s has %d bytes, and %d are allowed", ErrImageTooLarge, nameOf(header), header.Size, maxDescription)
		}
		if size += header.Size; r.above(size) {
			return r.tooLarge()
		}
		header.Format = tar.FormatUnknown
		if err := to.WriteHeader(header); err != nil {
			return fmt.Errorf("read image archive: %w", err)
		}
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
	}
}

// nameOf is the name of an archive's file as its reader takes it.
func nameOf(header *tar.Header) string { return strings.TrimPrefix(path.Clean("/"+header.Name), "/") }
