// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

func TestKindsOfLayers(t *testing.T) {
	for mediaType, unpacked := range map[string]bool{
		ispec.MediaTypeImageLayer:                                 true,
		ispec.MediaTypeImageLayerGzip:                             true,
		ispec.MediaTypeImageLayerZstd:                             true,
		"application/vnd.oci.image.layer.nondistributable.v1.tar": true,
		images.MediaTypeDockerSchema2Layer:                        true,
		images.MediaTypeDockerSchema2LayerGzip:                    true,
		images.MediaTypeDockerSchema2LayerZstd:                    true,
		images.MediaTypeDockerSchema2LayerForeignGzip:             true,
		images.MediaTypeImageLayerEncrypted:                       false,
		images.MediaTypeImageLayerGzipEncrypted:                   false,
		ispec.MediaTypeImageLayerZstd + "+encrypted":              false,
		images.MediaTypeDockerSchema2LayerGzip + "+encrypted":     false,
		images.MediaTypeErofsLayer:                                false,
		"application/vnd.oci.image.layer.nydus.blob.v1":           false,
		ispec.MediaTypeImageLayer + "+lz4":                        false,
		images.MediaTypeInToto:                                    true, // no layer, and so not unpacked
		"application/vnd.dev.cosign.simplesigning.v1+json":        true,
		ispec.MediaTypeImageConfig:                                true,
	} {
		err := checkKind(ispec.Descriptor{MediaType: mediaType, Digest: "sha256:1"})
		if unpacked {
			must.NoError(t, err, must.Sprint(mediaType))
			continue
		}
		must.ErrorIs(t, err, ErrLayerKind, must.Sprint(mediaType))
		must.ErrorContains(t, err, `layer sha256:1: media type "`+mediaType+`" is not valid`)
		must.Eq(t, strings.Contains(mediaType, "encrypted"), strings.Contains(err.Error(), "nothing here decrypts"), must.Sprint(mediaType))
	}
}

// encryptedArchive is an image as ocicrypt leaves it: only its layer cannot be read.
func encryptedArchive(t *testing.T) []byte {
	t.Helper()
	sealed := make([]byte, 64<<10)
	_, err := rand.Read(sealed)
	must.NoError(t, err)
	var archive bytes.Buffer
	must.NoError(t, testimage.BuildPacked(&archive, "example.test/sealed:1", []testimage.Packed{
		{MediaType: images.MediaTypeImageLayerGzipEncrypted, Content: sealed, DiffID: digest.FromString("plain")},
	}, ispec.ImageConfig{}))
	return archive.Bytes()
}

// TestEncryptedLayersAreRefused with their reason, and a registry is not asked for them.
func TestEncryptedLayersAreRefused(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		archive := encryptedArchive(t)
		_, err := r.Import(t.Context(), bytes.NewReader(archive), "")
		must.ErrorIs(t, err, ErrLayerKind)

		h := newHub(t, archive)
		_, err = r.Pull(t.Context(), Pull{Ref: h.ref(), Credentials: noLogin})
		must.ErrorIs(t, err, ErrLayerKind)
		must.ErrorContains(t, err, "encrypted")
		var manifest ispec.Manifest
		must.NoError(t, json.Unmarshal(h.blobs[string(h.manifest.Digest)], &manifest))
		must.SliceNotContains(t, h.said(), string(manifest.Layers[0].Digest))
		_, err = r.Image(t.Context(), h.ref(), "")
		must.ErrorIs(t, err, ErrNoImage)
		must.SliceEmpty(t, leasesIn(r.ofOurs(t)))
	})
}

// TestLayersAreWhatTheirConfigSays, also where containerd has unpacked them for another
// image and so does not look into them again.
func TestLayersAreWhatTheirConfigSays(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		layer := func(content string) []byte {
			tar, err := testimage.Layer(map[string]testimage.File{"/etc/image": {Content: []byte(content)}})
			must.NoError(t, err)
			return tar
		}
		plain := layer("plain" + r.config.Owner)
		build := func(packed []byte, mediaType string) *bytes.Buffer {
			var archive bytes.Buffer
			must.NoError(t, testimage.BuildPacked(&archive, "example.test/layers:1", []testimage.Packed{
				{MediaType: mediaType, Content: packed, DiffID: digest.FromBytes(plain)},
			}, ispec.ImageConfig{}))
			return &archive
		}
		load := func(packed []byte, mediaType string) error {
			_, err := r.Import(t.Context(), build(packed, mediaType), "")
			return err
		}
		must.NoError(t, load(plain, ispec.MediaTypeImageLayer))
		packed := gzipOf(t, plain)
		must.NoError(t, load(packed, ispec.MediaTypeImageLayerGzip), must.Sprint("the same, packed"))
		info, err := r.client.ContentStore().Info(r.with(t.Context()), digest.FromBytes(packed))
		must.NoError(t, err)
		must.Eq(t, digest.FromBytes(plain).String(), info.Labels[labels.LabelUncompressed], must.Sprint("what was found out of a layer is kept with it"))
		other := gzipOf(t, layer("other"))
		for range 2 {
			must.ErrorContains(t, load(other, ispec.MediaTypeImageLayerGzip), "as the config says")
		}
		_, err = r.Pull(t.Context(), Pull{Ref: newHub(t, build(other, ispec.MediaTypeImageLayerGzip).Bytes()).ref(), Credentials: noLogin})
		must.ErrorContains(t, err, "as the config says")
		must.ErrorIs(t, load(packed[:len(packed)-5], ispec.MediaTypeImageLayerGzip), io.ErrUnexpectedEOF, must.Sprint("a layer that ends too soon"))
	})
}

func gzipOf(t *testing.T, text []byte) []byte {
	t.Helper()
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(text)
	must.NoError(t, err)
	must.NoError(t, w.Close())
	return packed.Bytes()
}

// TestAnImageOfSomebodyElsesIsBoundedToo, which no pull and no import of ours has seen.
func TestAnImageOfSomebodyElsesIsBoundedToo(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		ctx := r.with(t.Context())
		store := r.client.ContentStore()
		put := func(mediaType string, text []byte) ispec.Descriptor {
			desc := ispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
			must.NoError(t, content.WriteBlob(ctx, store, string(desc.Digest), bytes.NewReader(text), desc,
				content.WithLabels(map[string]string{"containerd.io/gc.root": "now"})))
			return desc
		}
		config := put(ispec.MediaTypeImageConfig, append([]byte(`{"os":"linux","architecture":"amd64"}`), bytes.Repeat([]byte(" "), maxDescription)...))
		manifest, err := json.Marshal(ispec.Manifest{MediaType: ispec.MediaTypeImageManifest, Config: config})
		must.NoError(t, err)
		image, err := r.client.ImageService().Create(ctx, images.Image{Name: "example.test/giant:1", Target: put(ispec.MediaTypeImageManifest, manifest)})
		must.NoError(t, err)
		_, err = r.Image(ctx, image.Name, "")
		must.ErrorIs(t, err, ErrImageTooLarge)
		must.SliceEmpty(t, leasesIn(r.ofOurs(t)))
	})
}
