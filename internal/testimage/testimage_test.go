// SPDX-License-Identifier: MPL-2.0

package testimage

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func unpack(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content) + h.Linkname
	}
}

func TestBuildIsAnOCILayout(t *testing.T) {
	files := map[string]File{
		"/etc/passwd":  {Content: []byte("root:x:0:0::/:/bin/sh\n")},
		"/bin/current": {Link: "/bin/sh"},
		"/tmp":         {Mode: 0o777 | fs.ModeSticky},
	}
	var first, second bytes.Buffer
	for _, w := range []io.Writer{&first, &second} {
		if err := Build(w, "example.test/hello:1", files, ispec.ImageConfig{Cmd: []string{"/bin/sh"}}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("the same input gave different bytes")
	}
	layout := unpack(t, &first)
	var index ispec.Index
	if err := json.Unmarshal([]byte(layout["index.json"]), &index); err != nil {
		t.Fatal(err)
	}
	if got := index.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; got != "1" {
		t.Errorf("tag is %q", got)
	}
	var manifest ispec.Manifest
	if err := json.Unmarshal([]byte(layout["blobs/sha256/"+index.Manifests[0].Digest.Encoded()]), &manifest); err != nil {
		t.Fatal(err)
	}
	layer := unpack(t, strings.NewReader(layout["blobs/sha256/"+manifest.Layers[0].Digest.Encoded()]))
	for name, want := range map[string]string{"bin/": "", "etc/": "", "tmp/": "", "bin/current": "/bin/sh", "etc/passwd": "root:x:0:0::/:/bin/sh\n"} {
		if got, ok := layer[name]; !ok || got != want {
			t.Errorf("%s is %q, %v; want %q", name, got, ok, want)
		}
	}
}

func TestBuildRefusesOddPaths(t *testing.T) {
	for _, name := range []string{"etc/passwd", "/etc/../passwd", "/etc/"} {
		if err := Build(io.Discard, "x", map[string]File{name: {}}, ispec.ImageConfig{}); err == nil {
			t.Errorf("%q was accepted", name)
		}
	}
}

func TestHostProgramsBringTheirLibraries(t *testing.T) {
	files, err := HostPrograms(context.Background(), "sh")
	if err != nil {
		t.Skip("no sh on this machine")
	}
	if _, ok := files["/bin/sh"]; !ok {
		t.Errorf("got %v", files)
	}
	if _, err := HostPrograms(context.Background(), "no-such-program-here"); err == nil {
		t.Error("a missing program was accepted")
	}
}
