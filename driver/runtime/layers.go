// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrLayerKind means that an image has a layer that the driver does not unpack.
var ErrLayerKind = errors.New("the image cannot be unpacked")

// packings are what a tar may be packed with, as media types say it.
var packings = []string{"", "gzip", "zstd"}

// checkKind refuses a layer by its media type, before it is fetched. The driver unpacks
// layers itself (see unpack.go), so what containerd's stream processors would make of an
// encrypted one, with the node's keys, does not happen. Other parts pass.
func checkKind(desc ispec.Descriptor) error {
	if !images.IsLayerType(desc.MediaType) {
		return nil
	}
	base, packing, _ := strings.Cut(desc.MediaType, "+")
	if _, err := images.DiffCompression(context.Background(), base); err == nil && slices.Contains(packings, packing) {
		return nil
	}
	valid := "a tar, plain or packed with gzip or zstd"
	if strings.HasSuffix(packing, "encrypted") {
		valid += ": nothing here decrypts layers, so store the image decrypted in a registry that wants a login"
	}
	return fmt.Errorf("%w: layer %s: media type %q is not valid (%s)", ErrLayerKind, desc.Digest, desc.MediaType, valid)
}

// checkKinds refuses an image with a part that cannot be unpacked.
func checkKinds(parts []ispec.Descriptor) error {
	for _, part := range parts {
		if err := checkKind(part); err != nil {
			return err
		}
	}
	return nil
}

// verifyLayers holds the layers of an unpacked image against what its config says
// is in them. Containerd believes a config whose layers it has unpacked for some
// other image: by their digests alone, one could run what another tenant keeps
// private.
func (r *Runtime) verifyLayers(ctx context.Context, handle client.Image) error {
	store := handle.ContentStore()
	manifest, err := images.Manifest(ctx, store, handle.Target(), handle.Platform())
	if err != nil {
		return fmt.Errorf("read manifest of image %q: %w", handle.Name(), err)
	}
	diffs, err := handle.RootFS(ctx)
	if err != nil {
		return fmt.Errorf("read config of image %q: %w", handle.Name(), err)
	}
	var layers []ispec.Descriptor
	for _, layer := range manifest.Layers {
		if images.IsLayerType(layer.MediaType) {
			layers = append(layers, layer)
		}
	}
	if len(layers) != len(diffs) {
		return fmt.Errorf("image %q has %d layers, and its config %d", handle.Name(), len(layers), len(diffs))
	}
	for i, layer := range layers {
		is, err := r.contentOf(ctx, layer)
		if err != nil {
			return fmt.Errorf("read layer %s of image %q: %w", layer.Digest, handle.Name(), err)
		}
		if is != diffs[i] {
			return fmt.Errorf("image %q: layer %s is not %s, as the config says", handle.Name(), layer.Digest, diffs[i])
		}
	}
	return nil
}

// contentOf returns the digest of a layer without its compression. It is written
// down with the layer, here or by whoever unpacked it.
func (r *Runtime) contentOf(ctx context.Context, layer ispec.Descriptor) (digest.Digest, error) {
	store := r.client.ContentStore()
	info, err := store.Info(ctx, layer.Digest)
	if err != nil {
		return "", err
	}
	if known := info.Labels[labels.LabelUncompressed]; known != "" {
		return digest.Digest(known), nil
	}
	give, err := r.unpackPlace(ctx)
	if err != nil {
		return "", err
	}
	defer give()
	plain, err := r.plainLayer(ctx, layer)
	if err != nil {
		return "", err
	}
	defer plain.Close()
	if _, err := io.Copy(io.Discard, plain); err != nil {
		return "", err
	}
	is := plain.digester.Digest()
	info.Labels = map[string]string{labels.LabelUncompressed: is.String()}
	_, err = store.Update(ctx, info, "labels."+labels.LabelUncompressed)
	return is, err
}
