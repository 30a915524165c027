package runtime

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// verifyLayers holds the layers of an unpacked image against what its config says
// is in them. Containerd believes a config whose layers it has unpacked for some
// other image: by their digests alone, one could run what somebody else keeps
// private.
func verifyLayers(ctx context.Context, handle client.Image) error {
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
		is, err := contentOf(ctx, store, layer)
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
func contentOf(ctx context.Context, store content.Store, layer ispec.Descriptor) (digest.Digest, error) {
	info, err := store.Info(ctx, layer.Digest)
	if err != nil {
		return "", err
	}
	if known := info.Labels[labels.LabelUncompressed]; known != "" {
		return digest.Digest(known), nil
	}
	reader, err := store.ReaderAt(ctx, layer)
	if err != nil {
		return "", err
	}
	defer reader.Close()
	plain, err := compression.DecompressStream(content.NewReader(reader))
	if err != nil {
		return "", err
	}
	defer plain.Close()
	is, err := digest.FromReader(plain)
	if err != nil {
		return "", err
	}
	info.Labels = map[string]string{labels.LabelUncompressed: is.String()}
	_, err = store.Update(ctx, info, "labels."+labels.LabelUncompressed)
	return is, err
}
