// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

const (
	gzipLayer = ispec.MediaTypeImageLayerGzip
	zstdLayer = ispec.MediaTypeImageLayerZstd
	plainTar  = ispec.MediaTypeImageLayer
)

// packed compresses a layer.
func packed(t *testing.T, mediaType string, layer []byte) testimage.Packed {
	t.Helper()
	var content bytes.Buffer
	var w io.WriteCloser
	switch mediaType {
	case gzipLayer:
		var err error
		w, err = gzip.NewWriterLevel(&content, gzip.BestSpeed)
		must.NoError(t, err)
	case zstdLayer:
		var err error
		w, err = zstd.NewWriter(&content, zstd.WithEncoderLevel(zstd.SpeedFastest))
		must.NoError(t, err)
	default:
		return testimage.Packed{MediaType: mediaType, Content: layer, DiffID: digest.FromBytes(layer)}
	}
	_, err := w.Write(layer)
	must.NoError(t, err)
	must.NoError(t, w.Close())
	return testimage.Packed{MediaType: mediaType, Content: content.Bytes(), DiffID: digest.FromBytes(layer)}
}

// zeros is a layer of one file of so many MiB that are all zero. What is compressed may
// be put together of several streams, so that a big one is made at once.
func zeros(t *testing.T, mediaType, name string, mib int) testimage.Packed {
	t.Helper()
	var header bytes.Buffer
	must.NoError(t, tar.NewWriter(&header).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(mib) << 20, Mode: 0o644}))
	layer := packed(t, mediaType, header.Bytes())
	layer.Content = append(layer.Content, bytes.Repeat(packed(t, mediaType, make([]byte, 1<<20)).Content, mib)...)
	return layer
}

// hole is a layer of one sparse file: 512 bytes say how large it is.
func hole(t *testing.T, size uint64) []byte {
	t.Helper()
	var layer bytes.Buffer
	must.NoError(t, tar.NewWriter(&layer).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "hole", Mode: 0o644, Format: tar.FormatGNU}))
	block := layer.Bytes()[:512]
	number := func(at int, value uint64) { // as GNU's tar writes large numbers
		block[at] = 0x80
		binary.BigEndian.PutUint64(block[at+4:], value)
	}
	block[156] = tar.TypeGNUSparse
	number(386, size) // the only part of it with content begins at its end
	number(386+12, 0)
	number(483, size)
	copy(block[148:156], "        ")
	sum := 0
	for _, b := range block {
		sum += int(b)
	}
	copy(block[148:156], append([]byte(strings.Repeat("0", 6-len(octal(sum)))+octal(sum)), 0, ' '))
	return append(layer.Bytes(), make([]byte, 1024)...)
}

func octal(n int) string {
	if n == 0 {
		return ""
	}
	return octal(n/8) + itoa(n%8)
}

// manyFiles is a layer of empty files.
func manyFiles(t *testing.T, count int, prefix string) []byte {
	t.Helper()
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	for i := range count {
		must.NoError(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: prefix + itoa(i), Mode: 0o644}))
	}
	must.NoError(t, tw.Close())
	return layer.Bytes()
}

// TestHostileLayers: what is small to fetch may be any size unpacked. Each is refused
// before it has taken more than the operator allows, and nothing of it is left.
func TestHostileLayers(t *testing.T) {
	small := func(t *testing.T, name string) testimage.Packed {
		layer, err := testimage.Layer(map[string]testimage.File{name: {Content: make([]byte, 7<<20)}})
		must.NoError(t, err)
		return packed(t, gzipLayer, layer)
	}
	bombs := map[string]func(t *testing.T) []testimage.Packed{
		"gzip": func(t *testing.T) []testimage.Packed { return []testimage.Packed{zeros(t, gzipLayer, "zero", 1<<7)} },
		"zstd": func(t *testing.T) []testimage.Packed { return []testimage.Packed{zeros(t, zstdLayer, "zero", 1<<7)} },
		"zeros after the end": func(t *testing.T) []testimage.Packed {
			end := packed(t, gzipLayer, make([]byte, 1024))
			end.Content = append(end.Content, bytes.Repeat(packed(t, gzipLayer, make([]byte, 1<<20)).Content, 1<<7)...)
			return []testimage.Packed{end}
		},
		"hole": func(t *testing.T) []testimage.Packed { return []testimage.Packed{packed(t, plainTar, hole(t, 1<<42))} },
		"hole above every sum": func(t *testing.T) []testimage.Packed {
			return []testimage.Packed{packed(t, plainTar, hole(t, 1<<63-1))}
		},
		"files of nothing": func(t *testing.T) []testimage.Packed {
			return []testimage.Packed{packed(t, gzipLayer, manyFiles(t, 4200, "d/"))}
		},
		"layers that are small each": func(t *testing.T) []testimage.Packed {
			return []testimage.Packed{small(t, "/a"), small(t, "/b"), small(t, "/c")}
		},
	}
	withOwnContainerd(t, func(t *testing.T, e *env) {
		limited := e.with(func(c *config.Config) { c.MaxUnpackedSize = "16M" })
		e.driver, e.harness = limited.driver, limited.harness
		r := startRegistry(t, false, false)
		number, before := 0, e.snapshots()
		for name, layers := range bombs {
			number++
			var archive bytes.Buffer
			image := "bomb" + itoa(number) + ":1"
			must.NoError(t, testimage.BuildPacked(&archive, r.addr+"/"+image, layers(t), ispec.ImageConfig{Cmd: []string{"/true"}}))
			for _, ref := range []string{r.pushArchive(t, image, archive.Bytes()), "local/bomb.tar"} {
				cfg := e.quietTask(imageConfig(ref))
				must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "bomb.tar"), archive.Bytes(), 0o644))
				_, _, err := e.driver.StartTask(cfg)
				says := "unpacked, it is larger than the 16 MiB that this node's operator allows (max_unpacked_size)"
				if name == "zeros after the end" {
					says = "more than 1024 KiB follow its end"
				}
				must.ErrorContains(t, err, says, must.Sprint(name, ref))
				must.False(t, structs.IsRecoverable(err), must.Sprint(name, ref))
				must.Eq(t, nil, e.leftovers(), must.Sprint(name, ref))
			}
		}
		must.Eq(t, before, e.snapshots())
		e.copiesCount(r)
	})
}

// copiesCount: three layers of 20 MiB have 60, and 120 where each holds what is below.
func (e *env) copiesCount(r *registry) {
	e.t.Helper()
	base, err := boxLayer()
	must.NoError(e.t, err)
	layers := []testimage.Packed{packed(e.t, gzipLayer, base)}
	for _, name := range []string{"/a", "/b", "/c"} {
		layer, err := testimage.Layer(map[string]testimage.File{name: {Content: make([]byte, 20<<20)}})
		must.NoError(e.t, err)
		layers = append(layers, packed(e.t, gzipLayer, layer))
	}
	var archive bytes.Buffer
	must.NoError(e.t, testimage.BuildPacked(&archive, r.addr+"/copies:1", layers, ispec.ImageConfig{Env: []string{"PATH=/bin"}}))
	block := imageConfig(r.pushArchive(e.t, "copies:1", archive.Bytes()))
	limited := e.with(func(c *config.Config) { c.MaxUnpackedSize = "100M" })
	out, _ := limited.run(block)
	must.Eq(e.t, "pulled\n", out)
	block.Snapshotter = "native"
	_, _, err = limited.driver.StartTask(limited.quietTask(block))
	must.ErrorContains(e.t, err, "max_unpacked_size")
}

// snapshots counts those of images and containers.
func (e *env) snapshots() int {
	e.t.Helper()
	cl, err := client.New(e.config.Socket, client.WithDefaultNamespace(testNamespace))
	must.NoError(e.t, err)
	defer cl.Close()
	count := 0
	must.NoError(e.t, cl.SnapshotService(e.config.Snapshotter).Walk(context.Background(), func(context.Context, snapshots.Info) error {
		count++
		return nil
	}))
	return count
}

// TestPackedLayers of each kind are unpacked as they were made.
func TestPackedLayers(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		base, err := boxLayer()
		must.NoError(t, err)
		for i, kind := range []string{plainTar, gzipLayer, zstdLayer} {
			above, err := testimage.Layer(map[string]testimage.File{"/etc/kind": {Content: []byte(kind + e.node + "\n")}, "/etc/.wh.group": {Content: []byte{}}})
			must.NoError(t, err)
			config := imageConfig("local/image.tar")
			config.Command, config.Args = "sh", []string{"-c", "cat /etc/kind; ls /etc; stat -c '%a %u' /tmp"}
			cfg := e.quietTask(config)
			var archive bytes.Buffer
			must.NoError(t, testimage.BuildPacked(&archive, "example.test/packed:"+itoa(i), []testimage.Packed{packed(t, kind, base), packed(t, kind, above)}, ispec.ImageConfig{Env: []string{"PATH=/bin"}}))
			must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), archive.Bytes(), 0o644))
			out, _ := e.runPrepared(cfg)
			must.StrHasPrefix(t, kind+e.node+"\n", out)
			must.StrContains(t, out, "\npasswd\n")
			must.StrNotContains(t, out, "group")
			must.StrHasSuffix(t, "\n1777 0\n", out)
		}
	})
}
