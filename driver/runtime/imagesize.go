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
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// What describes an image is read into the memory of this process, as a whole, and
// its size is the author's choice. Layers are not read here.

// maxDescription is how large a manifest, an index or a configuration may be. Those
// of real images have some kilobytes; registries refuse manifests above 4 MiB.
const maxDescription = 8 << 20

// ErrImageTooLarge means that an image is not what images are.
var ErrImageTooLarge = errors.New("the image is refused")

func checkDescription(desc ispec.Descriptor, size int64) error {
	if size > maxDescription {
		return fmt.Errorf("%w: what describes it, %s, has %d bytes, and %d are allowed", ErrImageTooLarge, desc.MediaType, size, maxDescription)
	}
	return nil
}

// boundedHandler refuses, before it is fetched, what describes an image and is too
// large. A manifest's first child is its configuration, whatever it says of itself.
func boundedHandler(next images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc ispec.Descriptor) ([]ispec.Descriptor, error) {
		if !images.IsLayerType(desc.MediaType) {
			if err := checkDescription(desc, desc.Size); err != nil {
				return nil, err
			}
		}
		children, err := next.Handle(ctx, desc)
		if err == nil && images.IsManifestType(desc.MediaType) && len(children) > 0 {
			err = checkDescription(children[0], children[0].Size)
		}
		return children, err
	})
}

// checkDescriptions refuses an image that containerd holds, by the sizes that its
// blobs really have, before any of them is read. What is missing is not read either.
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
	return images.Walk(ctx, images.HandlerFunc(func(ctx context.Context, desc ispec.Descriptor) ([]ispec.Descriptor, error) {
		if images.IsLayerType(desc.MediaType) {
			return nil, images.ErrSkipDesc
		}
		if err := check(ctx, desc); err != nil {
			return nil, err
		}
		children, err := images.Children(ctx, store, desc)
		if errdefs.IsNotFound(err) {
			return nil, images.ErrSkipDesc
		}
		if err == nil && images.IsManifestType(desc.MediaType) && len(children) > 0 {
			return nil, check(ctx, children[0])
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
// it, and gets the error from reading.
func boundedTar(r io.Reader) io.ReadCloser {
	out, in := io.Pipe()
	go func() { _ = in.CloseWithError(copyBounded(in, r)) }()
	return out
}

func copyBounded(w io.Writer, r io.Reader) error {
	from, to := tar.NewReader(r), tar.NewWriter(w)
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
