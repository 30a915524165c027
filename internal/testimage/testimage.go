// SPDX-License-Identifier: MPL-2.0

// Package testimage makes small container images in memory, so that tests and
// the demo need no registry and no network.
//
// An image has one layer, made of files that a caller names: a static program
// of ours, or a program of this machine together with the libraries that it
// loads. The result is an OCI image layout in a tar, which every containerd
// imports.
//
//	files := map[string]testimage.File{"/bin/hello": {Source: path, Mode: 0o755}}
//	err := testimage.Build(w, "example.test/hello:1", files, ispec.ImageConfig{Entrypoint: []string{"/bin/hello"}})
//
// The same input gives the same bytes, and therefore the same digests.
package testimage

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// File is one entry of an image: exactly one of Content, Source and Link, or
// none of them for an empty directory.
type File struct {
	// Content is what the file holds.
	Content []byte
	// Source is a file of this machine to copy.
	Source string
	// Link makes a symbolic link to that target.
	Link string
	// Mode defaults to 0755 for directories and sources, else 0644.
	Mode fs.FileMode
}

// Build writes an image called name, such as "example.test/hello:1", as the tar
// of an OCI image layout. Keys of files are absolute paths in the image; parent
// directories come by themselves.
func Build(w io.Writer, name string, files map[string]File, config ispec.ImageConfig) error {
	layer, err := Layer(files)
	if err != nil {
		return fmt.Errorf("build image %q: %w", name, err)
	}
	return BuildLayers(w, name, [][]byte{layer}, config)
}

// BuildLayers is Build with layers that the caller made, the lowest first. They
// are tars, and nothing is checked about them.
func BuildLayers(w io.Writer, name string, layers [][]byte, config ispec.ImageConfig) error {
	packed := make([]Packed, len(layers))
	for i, layer := range layers {
		packed[i] = Packed{MediaType: ispec.MediaTypeImageLayer, Content: layer, DiffID: digest.FromBytes(layer)}
	}
	return BuildPacked(w, name, packed, config)
}

// Packed is a layer as registries keep it.
type Packed struct {
	MediaType string
	Content   []byte
	// DiffID is the digest of the tar that is packed in it.
	DiffID digest.Digest
}

// BuildPacked is BuildLayers with layers that the caller also packed.
func BuildPacked(w io.Writer, name string, layers []Packed, config ispec.ImageConfig) error {
	var l layout
	var descriptors []ispec.Descriptor
	var diffIDs []digest.Digest
	for _, layer := range layers {
		descriptors = append(descriptors, l.add(layer.MediaType, layer.Content))
		diffIDs = append(diffIDs, layer.DiffID)
	}
	configDesc, err := l.addJSON(ispec.MediaTypeImageConfig, ispec.Image{
		Platform: ispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
		Config:   config,
		RootFS:   ispec.RootFS{Type: "layers", DiffIDs: diffIDs},
	})
	if err != nil {
		return fmt.Errorf("build image %q: %w", name, err)
	}
	manifest, err := l.addJSON(ispec.MediaTypeImageManifest, ispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ispec.MediaTypeImageManifest,
		Config:    configDesc,
		Layers:    descriptors,
	})
	if err != nil {
		return fmt.Errorf("build image %q: %w", name, err)
	}
	manifest.Platform = &ispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	manifest.Annotations = map[string]string{"io.containerd.image.name": name, ispec.AnnotationRefName: tagOf(name)}
	if err := l.write(w, manifest); err != nil {
		return fmt.Errorf("write image %q: %w", name, err)
	}
	return nil
}

// layout collects the blobs of one image, in the order in which they are written.
type layout struct {
	blobs []blob
}

type blob struct {
	digest  digest.Digest
	content []byte
}

func (l *layout) add(mediaType string, content []byte) ispec.Descriptor {
	d := digest.FromBytes(content)
	l.blobs = append(l.blobs, blob{d, content})
	return ispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(content))}
}

func (l *layout) addJSON(mediaType string, value any) (ispec.Descriptor, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return ispec.Descriptor{}, fmt.Errorf("encode %s: %w", mediaType, err)
	}
	return l.add(mediaType, content), nil
}

func (l *layout) write(w io.Writer, manifest ispec.Descriptor) error {
	tw := tar.NewWriter(w)
	index := ispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ispec.MediaTypeImageIndex,
		Manifests: []ispec.Descriptor{manifest},
	}
	if err := writeJSON(tw, ispec.ImageLayoutFile, ispec.ImageLayout{Version: ispec.ImageLayoutVersion}); err != nil {
		return err
	}
	if err := writeJSON(tw, ispec.ImageIndexFile, index); err != nil {
		return err
	}
	for _, b := range l.blobs {
		name := path.Join(ispec.ImageBlobsDir, b.digest.Algorithm().String(), b.digest.Encoded())
		if err := writeFile(tw, name, b.content, 0o644); err != nil {
			return err
		}
	}
	return tw.Close()
}

// Layer is the tar of the files and of the directories above them.
func Layer(files map[string]File) ([]byte, error) {
	all := maps.Clone(files)
	for name := range files {
		if !path.IsAbs(name) || path.Clean(name) != name {
			return nil, fmt.Errorf("file %q: the path is not absolute and clean", name)
		}
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = File{}
			}
		}
	}
	var layer bytes.Buffer
	tw := tar.NewWriter(&layer)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := writeEntry(tw, strings.TrimPrefix(name, "/"), all[name]); err != nil {
			return nil, fmt.Errorf("file %q: %w", name, err)
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return layer.Bytes(), nil
}

func writeEntry(tw *tar.Writer, name string, f File) error {
	switch {
	case f.Link != "":
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: f.Link, Mode: 0o777, ModTime: time.Unix(0, 0)})
	case f.Source != "":
		content, err := os.ReadFile(f.Source)
		if err != nil {
			return err
		}
		return writeFile(tw, name, content, modeOr(f.Mode, 0o755))
	case f.Content != nil:
		return writeFile(tw, name, f.Content, modeOr(f.Mode, 0o644))
	default:
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: tarMode(modeOr(f.Mode, 0o755)), ModTime: time.Unix(0, 0)})
	}
}

func writeFile(tw *tar.Writer, name string, content []byte, mode fs.FileMode) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: tarMode(mode), ModTime: time.Unix(0, 0)}
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	_, err := tw.Write(content)
	return err
}

func writeJSON(tw *tar.Writer, name string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return writeFile(tw, name, content, 0o644)
}

// tarMode is mode with the sticky bit where tar keeps it.
func tarMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

func modeOr(mode, fallback fs.FileMode) fs.FileMode {
	if mode == 0 {
		return fallback
	}
	return mode
}

func tagOf(name string) string {
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[i+1:]
	}
	return "latest"
}
