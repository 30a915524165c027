// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// descriptor is how an OCI image refers to one of its parts.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// imageName is what the image of the placement service is called.
const imageName = "ghcr.io/nomad-gpu/nomad-gpu-scheduler"

// image writes an image of the placement service as the tar of an OCI layout, which
// containerd imports and registries' tools copy. It holds the program, the licenses and
// nothing else: no shell, no distribution, no certificates of authorities.
func (r release) image() error {
	notices, nomad, err := r.notices([]string{"nomad-gpu-scheduler"})
	if err != nil {
		return err
	}
	program, err := os.ReadFile(filepath.Join(r.bin, "nomad-gpu-scheduler"))
	if err != nil {
		return err
	}
	var layer, packed bytes.Buffer
	files := tar.NewWriter(&layer)
	const doc = "usr/share/doc/nomad-gpu-scheduler/"
	for _, f := range []struct {
		name    string
		mode    int64
		content []byte
	}{
		{"usr/bin/nomad-gpu-scheduler", 0o755, program},
		{doc + "copyright", 0o644, []byte(copyright(nomad))},
		{doc + "third-party-licenses", 0o644, []byte(notices)},
		{"tmp/", 0o1777, nil},
	} {
		header := tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: r.date, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
		if f.content == nil {
			header.Typeflag = tar.TypeDir
		}
		if err := files.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := files.Write(f.content); err != nil {
			return err
		}
	}
	if err := files.Close(); err != nil {
		return err
	}
	zip := gzip.NewWriter(&packed)
	if _, err := zip.Write(layer.Bytes()); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}

	out, err := os.Create(r.path("nomad-gpu-scheduler_" + r.version + "_linux_" + r.arch + ".oci.tar"))
	if err != nil {
		return err
	}
	defer out.Close()
	layout := layout{archive: tar.NewWriter(out), release: r}
	of := platform{r.arch, "linux"}
	layerAt := layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", packed.Bytes())
	configAt := layout.document("application/vnd.oci.image.config.v1+json", map[string]any{
		"created": r.date.Format("2006-01-02T15:04:05Z"), "architecture": of.Architecture, "os": of.OS,
		"config": map[string]any{
			"User": "65534:65534", "Entrypoint": []string{"/usr/bin/nomad-gpu-scheduler"}, "Cmd": []string{"serve"},
			"ExposedPorts": map[string]any{"4656/tcp": struct{}{}},
			"Labels": map[string]string{
				"org.opencontainers.image.title": "nomad-gpu-scheduler", "org.opencontainers.image.version": r.version,
				"org.opencontainers.image.licenses": "MPL-2.0", "org.opencontainers.image.source": "https://github.com/nomad-gpu/nomad-gpu",
			},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer.Bytes())}},
	})
	manifestAt := layout.document("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": configAt, "layers": []descriptor{layerAt},
	})
	manifestAt.Platform = &of
	tag := tagOf(r.version)
	manifestAt.Annotations = map[string]string{"io.containerd.image.name": imageName + ":" + tag, "org.opencontainers.image.ref.name": tag}
	layout.plain("index.json", map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []descriptor{manifestAt}})
	layout.plain("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"})
	if layout.err != nil {
		return layout.err
	}
	if err := layout.archive.Close(); err != nil {
		return err
	}
	return out.Close()
}

// tagOf is a version as a tag, in which a plus may not stand.
func tagOf(version string) string {
	return string(bytes.ReplaceAll([]byte(version), []byte("+"), []byte("-")))
}

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// layout writes an image, and keeps the first error.
type layout struct {
	archive *tar.Writer
	release release
	err     error
}

func (l *layout) file(name string, content []byte) {
	if l.err == nil {
		l.err = l.archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: l.release.date, Format: tar.FormatPAX})
	}
	if l.err == nil {
		_, l.err = io.Copy(l.archive, bytes.NewReader(content))
	}
}

func (l *layout) blob(mediaType string, content []byte) descriptor {
	sum := digest(content)
	l.file("blobs/sha256/"+sum[len("sha256:"):], content)
	return descriptor{MediaType: mediaType, Digest: sum, Size: int64(len(content))}
}

func (l *layout) document(mediaType string, value any) descriptor {
	text, err := json.Marshal(value)
	if l.err == nil {
		l.err = err
	}
	return l.blob(mediaType, text)
}

func (l *layout) plain(name string, value any) {
	text, err := json.Marshal(value)
	if l.err == nil {
		l.err = err
	}
	l.file(name, text)
}
