// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
)

// hub is a registry of one image, "team/box:1", that counts what it is asked for.
type hub struct {
	*httptest.Server
	mu       sync.Mutex
	blobs    map[string][]byte
	manifest ispec.Descriptor
	asked    []string
	// answer may answer in its place.
	answer func(w http.ResponseWriter, req *http.Request) bool
}

func newHub(t *testing.T, archive []byte) *hub {
	t.Helper()
	h := &hub{blobs: map[string][]byte{}}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		file, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.NoError(t, err)
		text, err := io.ReadAll(r)
		must.NoError(t, err)
		if file.Name == ispec.ImageIndexFile {
			var index ispec.Index
			must.NoError(t, json.Unmarshal(text, &index))
			h.manifest = index.Manifests[0]
		}
		h.blobs["sha256:"+path.Base(file.Name)] = text
	}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hub) ref() string { return strings.TrimPrefix(h.URL, "http://") + "/team/box:1" }

func (h *hub) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name := path.Base(req.URL.Path)
	h.asked = append(h.asked, name)
	if h.answer != nil && h.answer(w, req) {
		return
	}
	if name == "1" || name == string(h.manifest.Digest) {
		name = string(h.manifest.Digest)
		w.Header().Set("Content-Type", h.manifest.MediaType)
		w.Header().Set("Docker-Content-Digest", name)
	}
	content, has := h.blobs[name]
	if !has && name != "v2" {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(content)
	}
}

// said returns what was asked for since the last time.
func (h *hub) said() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	asked := h.asked
	h.asked = nil
	return asked
}

func noLogin(string) (string, string, error) { return "", "", nil }

func TestPullOfARuntime(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		ctx := t.Context()
		h := newHub(t, boxArchive(t, "pulled"+r.config.Owner))
		p := Pull{Ref: h.ref(), Credentials: noLogin, Access: "key", IdleTimeout: patience}
		image, err := r.Pull(ctx, p)
		must.NoError(t, err)
		must.Eq(t, h.ref(), image.Name)
		must.Eq(t, h.manifest.Digest, image.Digest)
		must.Eq(t, "key", image.Access())
		must.True(t, image.Managed())
		must.Eq(t, []string{"PATH=/bin"}, image.Config.Env)
		h.said()
		known, err := r.Image(ctx, h.ref(), "")
		must.NoError(t, err)
		must.Eq(t, image.Digest, known.Digest)
		must.SliceEmpty(t, h.said(), must.Sprint("an image that is there needs no network"))

		// Again: what the registry sent once, it is asked whether this caller may have.
		p.Access = ""
		image, err = r.Pull(ctx, p)
		must.NoError(t, err)
		must.Eq(t, "", image.Access())
		asked := h.said()
		for blob := range h.blobs {
			if blob != "sha256:"+ispec.ImageIndexFile && blob != "sha256:"+ispec.ImageLayoutFile && blob != string(h.manifest.Digest) {
				must.SliceContains(t, asked, blob)
			}
		}
		p.Access = "key"
		image, err = r.Pull(ctx, p)
		must.NoError(t, err)
		must.Eq(t, "", image.Access(), must.Sprint("it is everybody's"))

		// One that fails changes nothing of what is there.
		h.answer = func(w http.ResponseWriter, req *http.Request) bool {
			if strings.Contains(req.URL.Path, "/blobs/") {
				w.WriteHeader(http.StatusForbidden)
				return true
			}
			return false
		}
		_, err = r.Pull(ctx, p)
		must.ErrorIs(t, err, ErrPullDenied)
		image, err = r.Image(ctx, h.ref(), "")
		must.NoError(t, err)
		must.Eq(t, "", image.Access())
		h.answer = nil

		for says, change := range map[string]func(*Pull){
			"is not a reference": func(p *Pull) { p.Ref = "NO reference" },
			ErrPullMissing.Error(): func(p *Pull) {
				p.Ref = strings.Replace(p.Ref, "box:1", "box:2", 1)
			},
		} {
			other := p
			change(&other)
			_, err := r.Pull(ctx, other)
			must.ErrorContains(t, err, says)
		}
		must.SliceEmpty(t, leasesIn(r.ofOurs(t)))
	})
}

// TestPullRefuses what is too large, lies, or comes from nowhere, and keeps nothing of it.
func TestPullRefuses(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		ctx := t.Context()
		archive := boxArchive(t, "refused"+r.config.Owner)
		other := newHub(t, archive) // it has all of it
		victim := Pull{Ref: other.ref(), Credentials: noLogin}
		_, err := r.Pull(ctx, victim)
		must.NoError(t, err)

		h := newHub(t, archive)
		h.answer = func(w http.ResponseWriter, req *http.Request) bool {
			if lacks := strings.Contains(req.URL.Path, "/blobs/"); lacks {
				http.NotFound(w, req)
				return true
			}
			return false
		}
		p := Pull{Ref: h.ref(), Credentials: noLogin}
		refused := func(reason error) {
			t.Helper()
			_, err := r.Pull(ctx, p)
			must.ErrorIs(t, err, reason)
			_, err = r.Image(ctx, p.Ref, "")
			must.ErrorIs(t, err, ErrNoImage)
			must.SliceEmpty(t, leasesIn(r.ofOurs(t)))
		}
		refused(ErrNotPossessed)
		lies := func(w http.ResponseWriter, req *http.Request) bool {
			name := path.Base(req.URL.Path)
			if strings.Contains(req.URL.Path, "/blobs/") {
				_, _ = w.Write(bytes.Repeat([]byte("x"), len(h.blobs[name])))
				return true
			}
			return false
		}
		h.answer = lies
		refused(ErrNotPossessed)
		// Whoever sends all of it has it, and is asked for the beginning of it from then on.
		for _, answer := range []func(http.ResponseWriter, *http.Request) bool{nil, lies} {
			h.answer = answer
			_, err = r.Pull(ctx, p)
			must.NoError(t, err)
		}

		limited := &Runtime{config: r.config, log: r.log, client: r.client}
		limited.config.MaxImageBytes = 1 << 10
		_, err = limited.Pull(ctx, Pull{Ref: newHub(t, boxArchive(t, "large"+r.config.Owner)).ref(), Credentials: noLogin})
		must.ErrorIs(t, err, ErrImageTooLarge)

		silent := newHub(t, archive)
		hang := make(chan struct{})
		defer close(hang)
		silent.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang })
		_, err = r.Pull(ctx, Pull{Ref: silent.ref(), Credentials: noLogin, IdleTimeout: 50 * time.Millisecond})
		must.ErrorIs(t, err, ErrPullIdle)
		asked := 0
		_, err = r.Pull(ctx, Pull{Ref: victim.Ref, Credentials: func(host string) (string, string, error) {
			asked++
			return "", "", errors.New("the helper is away")
		}})
		must.NoError(t, err) // no login was asked for
		must.Eq(t, 0, asked)
	})
}

func TestWhoHasAnImageAfterAPull(t *testing.T) {
	is := digest.FromString("is")
	managed := map[string]string{managedLabel: "true"}
	for name, c := range map[string]struct {
		have   images.Image
		access string
		want   map[string]string
	}{
		"new":                                  {images.Image{}, "", managed},
		"new, with a login":                    {images.Image{}, "k", map[string]string{managedLabel: "true", accessLabel: "k"}},
		"theirs, of everybody":                 {images.Image{Name: "n", Target: ispec.Descriptor{Digest: is}, Labels: map[string]string{"a": "b"}}, "k", map[string]string{"a": "b"}},
		"theirs, without labels":               {images.Image{Name: "n", Target: ispec.Descriptor{Digest: is}}, "k", map[string]string{}},
		"theirs, another content":              {images.Image{Name: "n", Target: ispec.Descriptor{Digest: "other"}}, "k", map[string]string{accessLabel: "k"}},
		"ours, of everybody":                   {images.Image{Name: "n", Target: ispec.Descriptor{Digest: is}, Labels: managed}, "k", managed},
		"ours, of another login":               {images.Image{Name: "n", Target: ispec.Descriptor{Digest: is}, Labels: map[string]string{managedLabel: "true", accessLabel: "x"}}, "k", map[string]string{managedLabel: "true", accessLabel: "k"}},
		"ours, of a login, now without any":    {images.Image{Name: "n", Target: ispec.Descriptor{Digest: is}, Labels: map[string]string{managedLabel: "true", accessLabel: "x"}}, "", managed},
		"ours, when it was used is begun anew": {images.Image{Name: "n", Target: ispec.Descriptor{Digest: is}, Labels: map[string]string{managedLabel: "true", usedLabel: "x"}}, "", managed},
	} {
		must.Eq(t, c.want, labelsOfPull(c.have, is, Pull{Access: c.access}), must.Sprint(name))
	}
}

func TestWhyAPullFailed(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		cause  error
		err    error
		denied bool
		want   error
	}{
		"nobody knows":     {nil, failed, false, failed},
		"it was given up":  {context.Canceled, failed, true, context.Canceled},
		"denied":           {nil, failed, true, ErrPullDenied},
		"missing":          {nil, errdefs.ErrNotFound, false, ErrPullMissing},
		"too large":        {nil, ErrImageTooLarge, true, ErrImageTooLarge},
		"encrypted":        {nil, ErrLayerKind, true, ErrLayerKind},
		"not possessed":    {nil, fmt.Errorf("x: %w: %w", ErrNotPossessed, errdefs.ErrNotFound), true, ErrNotPossessed},
		"denied, not away": {nil, errdefs.ErrNotFound, true, ErrPullDenied},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		if c.cause != nil {
			cancel(c.cause)
		}
		m := &meter{}
		m.denied.Store(c.denied)
		got := m.explain(ctx, c.err)
		must.ErrorIs(t, got, c.want, must.Sprint(name))
		for _, other := range []error{ErrPullDenied, ErrPullMissing, ErrNotPossessed, ErrImageTooLarge, ErrLayerKind, ErrPullIdle} {
			must.Eq(t, other == c.want, errors.Is(got, other), must.Sprint(name, other))
		}
		cancel(nil)
	}
}

// TestSizesOfImages are those of all parts together, and of what describes it each.
func TestSizesOfImages(t *testing.T) {
	layer := func(size int64) ispec.Descriptor {
		return ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer, Size: size}
	}
	config := func(size int64) ispec.Descriptor {
		return ispec.Descriptor{MediaType: ispec.MediaTypeImageConfig, Size: size}
	}
	manifest := ispec.Descriptor{MediaType: ispec.MediaTypeImageManifest, Size: 10}
	for name, c := range map[string]struct {
		limit    int64
		desc     ispec.Descriptor
		children []ispec.Descriptor
		large    bool
	}{
		"within":                   {100, manifest, []ispec.Descriptor{config(10), layer(90)}, false},
		"one more":                 {100, manifest, []ispec.Descriptor{config(10), layer(91)}, true},
		"several":                  {100, manifest, []ispec.Descriptor{config(10), layer(50), layer(41)}, true},
		"above every sum":          {100, manifest, []ispec.Descriptor{config(10), layer(1<<63 - 1), layer(1<<63 - 1)}, true},
		"parts of no size":         {100, manifest, []ispec.Descriptor{config(0), layer(0)}, false},
		"the least limit":          {1, manifest, []ispec.Descriptor{config(2)}, true},
		"no limit":                 {0, manifest, []ispec.Descriptor{config(10), layer(1 << 62)}, false},
		"a config as it may be":    {0, manifest, []ispec.Descriptor{config(maxDescription)}, false},
		"a giant config":           {0, manifest, []ispec.Descriptor{config(maxDescription + 1)}, true},
		"a config that says layer": {0, manifest, []ispec.Descriptor{layer(maxDescription + 1)}, true},
		"a giant manifest":         {0, ispec.Descriptor{MediaType: ispec.MediaTypeImageManifest, Size: maxDescription + 1}, nil, true},
		"a manifest of nothing":    {0, manifest, nil, false},
		"a layer is read in parts": {0, layer(maxDescription + 1), nil, false},
		"an index of big images":   {100, ispec.Descriptor{MediaType: ispec.MediaTypeImageIndex, Size: 10}, []ispec.Descriptor{{Size: 1000}}, false},
	} {
		r := &Runtime{config: Config{MaxImageBytes: c.limit}}
		asked := false
		children, err := r.boundedHandler(images.HandlerFunc(func(context.Context, ispec.Descriptor) ([]ispec.Descriptor, error) {
			asked = true
			return c.children, nil
		})).Handle(t.Context(), c.desc)
		must.Eq(t, c.large, errors.Is(err, ErrImageTooLarge), must.Sprint(name, err))
		must.Eq(t, c.large, err != nil)
		must.Eq(t, c.desc.Size <= maxDescription || c.desc.MediaType == ispec.MediaTypeImageLayer, asked, must.Sprint(name))
		if !c.large {
			must.Eq(t, c.children, children)
		}
	}
	failed := errors.New("failed")
	_, err := (&Runtime{}).boundedHandler(images.HandlerFunc(func(context.Context, ispec.Descriptor) ([]ispec.Descriptor, error) {
		return []ispec.Descriptor{config(1)}, failed
	})).Handle(t.Context(), manifest)
	must.ErrorIs(t, err, failed)
}

// TestArchivesAreBounded in what is read of them, whoever reads it.
func TestArchivesAreBounded(t *testing.T) {
	archive := func(files ...tar.Header) []byte {
		var text bytes.Buffer
		w := tar.NewWriter(&text)
		for _, f := range files {
			f.Mode = 0o644
			must.NoError(t, w.WriteHeader(&f))
			_, err := w.Write(make([]byte, f.Size))
			must.NoError(t, err)
		}
		must.NoError(t, w.Close())
		return text.Bytes()
	}
	many := slices.Repeat([]tar.Header{{Name: "x"}}, maxArchiveEntries)
	for name, c := range map[string]struct {
		limit int64
		text  []byte
		large bool
		fails bool
	}{
		"empty":                     {limit: 10, text: archive()},
		"within":                    {limit: 10, text: archive(tar.Header{Name: "a", Size: 4}, tar.Header{Name: "b", Size: 6})},
		"one more":                  {limit: 10, text: archive(tar.Header{Name: "a", Size: 4}, tar.Header{Name: "b", Size: 7}), large: true},
		"as many files as may be":   {limit: 10, text: archive(many...)},
		"one file more":             {limit: 10, text: archive(append(many, tar.Header{Name: "y"})...), large: true},
		"an index as it may be":     {text: archive(tar.Header{Name: "index.json", Size: maxDescription})},
		"a giant index":             {text: archive(tar.Header{Name: "./index.json", Size: maxDescription + 1}), large: true},
		"a giant manifest":          {text: archive(tar.Header{Name: "x/../manifest.json", Size: maxDescription + 1}), large: true},
		"a giant blob":              {text: archive(tar.Header{Name: "blobs/sha256/x", Size: maxDescription + 1})},
		"cut off":                   {text: archive(tar.Header{Name: "a", Size: 4000})[:1000], fails: true},
		"no archive":                {text: bytes.Repeat([]byte("x"), 2000), fails: true},
		"of Unix V7":                {limit: 10, text: ofV7(archive(tar.Header{Name: "a", Size: 4}))},
		"another index in a folder": {text: archive(tar.Header{Name: "x/index.json", Size: maxDescription + 1})},
	} {
		bounded := (&Runtime{config: Config{MaxImageBytes: c.limit}}).boundedTar(bytes.NewReader(c.text))
		text, err := io.ReadAll(bounded)
		must.NoError(t, bounded.Close())
		must.Eq(t, c.large, errors.Is(err, ErrImageTooLarge), must.Sprint(name, err))
		must.Eq(t, c.large || c.fails, err != nil, must.Sprint(name, err))
		if err == nil {
			must.Eq(t, namesIn(t, c.text), namesIn(t, text), must.Sprint(name))
			must.True(t, bytes.HasSuffix(text, make([]byte, 1024)), must.Sprint(name, "it has its end"))
			for _, cut := range []int{0, 512, 600} { // whoever reads it has gone
				must.Eq(t, cut >= len(text), (&Runtime{}).copyBounded(&narrow{cut}, bytes.NewReader(c.text)) == nil, must.Sprint(name, cut))
			}
		}
	}
}

// narrow takes so many bytes.
type narrow struct{ left int }

func (n *narrow) Write(p []byte) (int, error) {
	if n.left -= len(p); n.left < 0 {
		return 0, errFailed
	}
	return len(p), nil
}

func namesIn(t *testing.T, archive []byte) map[string]int64 {
	t.Helper()
	names := map[string]int64{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		file, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		must.NoError(t, err)
		names[file.Name] += file.Size
	}
}

// ofV7 is an archive of one file as Unix V7 wrote them, which Go reads and does not write.
func ofV7(archive []byte) []byte {
	const checksum, ownHeader, magic = 148, 512, 257
	header := archive[:ownHeader]
	clear(header[magic:])
	copy(header[checksum:], "        ")
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[checksum:], fmt.Sprintf("%06o\x00 ", sum))
	return archive
}
