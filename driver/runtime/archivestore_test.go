// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"archive/tar"
	"bytes"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/shoenig/test/must"
)

// What "docker save" writes names its own configuration, and that is read as a whole
// before anything else is known of the image.
func TestAConfigurationIsNotReadWhenItIsTooLarge(t *testing.T) {
	for size, refused := range map[int]bool{maxDescription: false, maxDescription + 1: true} {
		text := append([]byte(`{"os":"linux","architecture":"amd64"}`), bytes.Repeat([]byte(" "), size)...)[:size]
		var archived bytes.Buffer
		w := tar.NewWriter(&archived)
		for name, content := range map[string][]byte{"manifest.json": []byte(`[{"Config":"any-name","Layers":[]}]`), "any-name": text} {
			must.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}))
			_, err := w.Write(content)
			must.NoError(t, err)
		}
		must.NoError(t, w.Close())
		store, err := local.NewStore(t.TempDir())
		must.NoError(t, err)
		from := (&Runtime{}).boundedTar(&archived)
		_, err = archive.ImportIndex(t.Context(), newArchiveStore(store), from)
		must.NoError(t, from.Close())
		if refused != errors.Is(err, ErrImageTooLarge) || !refused && err != nil {
			t.Errorf("a configuration of %d bytes: %v", size, err)
		}
	}
}
