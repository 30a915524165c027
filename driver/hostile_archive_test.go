// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

func archiveOf(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	for name, content := range files {
		must.NoError(t, tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o644}))
		_, err := tw.Write(content)
		must.NoError(t, err)
	}
	must.NoError(t, tw.Close())
	return archive.Bytes()
}

func blobName(d digest.Digest) string { return "blobs/sha256/" + d.Encoded() }

// parsed reads a JSON file of a layout.
func parsed[T any](t *testing.T, text []byte) T {
	t.Helper()
	var value T
	must.NoError(t, json.Unmarshal(text, &value))
	return value
}

// putJSON writes a JSON file into a layout, under its digest, and describes it.
func putJSON(t *testing.T, files map[string][]byte, like ispec.Descriptor, value any) ispec.Descriptor {
	t.Helper()
	text, err := json.Marshal(value)
	must.NoError(t, err)
	like.Digest, like.Size = digest.FromBytes(text), int64(len(text))
	files[blobName(like.Digest)] = text
	return like
}

// A neighbor's image is in containerd, and the attacker knows its digests.
func TestHostileArchivesOfOthersImages(t *testing.T) {
	withOwnContainerd(t, func(t *testing.T, e *env) {
		base, err := boxLayer()
		must.NoError(t, err)
		secret, err := testimage.Layer(map[string]testimage.File{"/secret": {Content: []byte(canarySong)}})
		must.NoError(t, err)
		var archive bytes.Buffer
		must.NoError(t, testimage.BuildLayers(&archive, "example.test/private:1", [][]byte{base, secret}, ispec.ImageConfig{
			Entrypoint: []string{"cat", "/secret"}, Env: []string{"PATH=/bin"},
		}))
		victim := bytes.Clone(archive.Bytes())
		config := defaultTaskConfig("")
		config.Image = "local/image.tar"
		runs := func(archive []byte) (string, error) {
			cfg := e.quietTask(config)
			must.NoError(t, os.WriteFile(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), archive, 0o644))
			cfg.StdoutPath, cfg.StderrPath = filepath.Join(e.dir, "out"), os.DevNull
			must.NoError(t, os.WriteFile(cfg.StdoutPath, nil, 0o600))
			_, _, err := e.harness.StartTask(cfg)
			if err == nil {
				e.wait(cfg.ID)
				must.NoError(t, e.harness.DestroyTask(cfg.ID, true))
			}
			out, readErr := os.ReadFile(cfg.StdoutPath)
			must.NoError(t, readErr)
			return string(out), err
		}
		out, err := runs(victim)
		must.NoError(t, err)
		must.Eq(t, canarySong, out)

		blobs, described := layoutOf(t, &archive)
		manifest := parsed[ispec.Manifest](t, blobs[described.Digest.String()])
		image := parsed[ispec.Image](t, blobs[manifest.Config.Digest.String()])
		setIndex := func(files map[string][]byte, manifest ispec.Descriptor) {
			text, err := json.Marshal(ispec.Index{MediaType: ispec.MediaTypeImageIndex, Manifests: []ispec.Descriptor{manifest}})
			must.NoError(t, err)
			files[ispec.ImageIndexFile] = text
		}
		// The attacker's own layers, in plain, and one with other content.
		empty, err := testimage.Layer(map[string]testimage.File{"/nothing": {Content: []byte("x")}})
		must.NoError(t, err)
		layerOf := func(content []byte) ispec.Descriptor {
			return ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer, Digest: digest.FromBytes(content), Size: int64(len(content))}
		}
		attacks := map[string]func(files map[string][]byte) (says string){
			"an index only": func(files map[string][]byte) string {
				setIndex(files, described)
				return "which it does not hold"
			},
			"an index of an index": func(files map[string][]byte) string {
				inner := ispec.Index{MediaType: ispec.MediaTypeImageIndex, Manifests: []ispec.Descriptor{described}}
				setIndex(files, putJSON(t, files, ispec.Descriptor{MediaType: ispec.MediaTypeImageIndex}, inner))
				return "which it does not hold"
			},
			"a manifest without layers and config": func(files map[string][]byte) string {
				setIndex(files, described)
				files[blobName(described.Digest)] = blobs[described.Digest.String()]
				return "which it does not hold"
			},
			"all but the layers": func(files map[string][]byte) string {
				setIndex(files, described)
				for name, content := range blobs {
					if name != manifest.Layers[1].Digest.String() {
						files[blobName(digest.Digest(name))] = content
					}
				}
				return "which it does not hold"
			},
			"a config that lies about the layers": func(files map[string][]byte) string {
				files[blobName(layerOf(empty).Digest)] = empty
				files[blobName(layerOf(base).Digest)] = base
				m := manifest
				m.Config = putJSON(t, files, manifest.Config, image)
				m.Layers = []ispec.Descriptor{layerOf(base), layerOf(empty)}
				setIndex(files, putJSON(t, files, described, m))
				return "as the config says"
			},
		}
		for name, attack := range attacks {
			files := map[string][]byte{ispec.ImageLayoutFile: []byte(`{"imageLayoutVersion":"1.0.0"}`)}
			says := attack(files)
			out, err := runs(archiveOf(t, files))
			must.ErrorContains(t, err, says, must.Sprint(name))
			must.Eq(t, "", out, must.Sprint(name))
		}
		for _, image := range []string{
			"nomad.local/archive@" + described.Digest.String(), "nomad.local/archive:latest", "nomad.local/x",
		} {
			config := defaultTaskConfig("")
			config.Image = image
			e.refused(e.quietTask(config), "another task's archive")
		}
		must.Eq(t, nil, e.leftovers())
	})
}

// An author whose archive Nomad has unpacked is told so.
func TestAnArchiveThatNomadUnpacked(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		config := defaultTaskConfig("true")
		config.Image = "local/image.tar"
		cfg := e.quietTask(config)
		e.refused(cfg, `options { archive = "false" }`)
		must.NoError(t, os.Mkdir(filepath.Join(cfg.TaskDir().LocalDir, "image.tar"), 0o755))
		e.refused(cfg, `options { archive = "false" }`)
	})
}
