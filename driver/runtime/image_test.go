// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
)

var errFailed = errors.New("this was to fail")

// errLeft is what containerd says of a directory that it left when it died.
var errLeft = errors.New("failed to rename: rename /a /b: file exists")

// stored is an image in a content store, whose unpacking a test decides.
type stored struct {
	client.Image // any other method is a mistake of the test
	store        content.Store
	target       ispec.Descriptor
	diffs        []digest.Digest
	config       ispec.Descriptor
	unpacked     bool
	fails        map[string][]error
	unpacks      string // the snapshotters, each with a space behind it
}

func (s *stored) next(call string) error {
	if next := s.fails[call]; len(next) > 0 {
		s.fails[call] = next[1:]
		return next[0]
	}
	return nil
}

func (s *stored) Name() string                      { return "example.test/stored:1" }
func (s *stored) Labels() map[string]string         { return nil }
func (s *stored) Target() ispec.Descriptor          { return s.target }
func (s *stored) ContentStore() content.Store       { return s.store }
func (s *stored) Platform() platforms.MatchComparer { return platforms.All }
func (s *stored) RootFS(context.Context) ([]digest.Digest, error) {
	return s.diffs, s.next("RootFS")
}
func (s *stored) Config(context.Context) (ispec.Descriptor, error) {
	return s.config, s.next("Config")
}
func (s *stored) IsUnpacked(context.Context, string) (bool, error) {
	return s.unpacked, s.next("IsUnpacked")
}

func (s *stored) Unpack(_ context.Context, snapshotter string, _ ...client.UnpackOpt) error {
	s.unpacks += snapshotter + " "
	return s.next("Unpack")
}

// put writes a blob.
func put(t *testing.T, store content.Store, mediaType string, text []byte) ispec.Descriptor {
	t.Helper()
	desc := ispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(text), Size: int64(len(text))}
	must.NoError(t, content.WriteBlob(t.Context(), store, desc.Digest.String(), bytes.NewReader(text), desc))
	return desc
}

// putImage writes an image of such layers, whose config names what is in them.
func putImage(t *testing.T, m *memory, layers ...[]byte) *stored {
	t.Helper()
	s := &stored{store: m.store, fails: map[string][]error{}, unpacked: true}
	s.config = put(t, m.store.Store, ispec.MediaTypeImageConfig, []byte(`{"config":{"User":"app"}}`))
	manifest := ispec.Manifest{MediaType: ispec.MediaTypeImageManifest, Config: s.config}
	for _, layer := range layers {
		manifest.Layers = append(manifest.Layers, put(t, m.store.Store, ispec.MediaTypeImageLayer, layer))
		s.diffs = append(s.diffs, digest.FromBytes(layer))
	}
	text, err := json.Marshal(manifest)
	must.NoError(t, err)
	s.target = put(t, m.store.Store, ispec.MediaTypeImageManifest, text)
	return s
}

// TestWhatAnImageNeedsToBeReady, and that it is asked for once.
func TestWhatAnImageNeedsToBeReady(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*memory, *stored)
		unpacks int
		fails   bool
	}{
		"unpacked":              {change: func(*memory, *stored) {}},
		"not unpacked":          {change: func(_ *memory, s *stored) { s.unpacked = false }, unpacks: 1},
		"cannot be unpacked":    {change: func(_ *memory, s *stored) { s.unpacked, s.fails["Unpack"] = false, []error{errFailed} }, unpacks: 1, fails: true},
		"a directory was left":  {change: func(_ *memory, s *stored) { s.unpacked, s.fails["Unpack"] = false, []error{errLeft} }, unpacks: 2},
		"it is left for good":   {change: func(_ *memory, s *stored) { s.unpacked, s.fails["Unpack"] = false, []error{errLeft, errLeft} }, unpacks: 2, fails: true},
		"no lease":              {change: func(m *memory, s *stored) { s.unpacked, m.fails["leases.Create"] = false, []error{errFailed} }, fails: true},
		"not to be asked":       {change: func(_ *memory, s *stored) { s.fails["IsUnpacked"] = []error{errFailed} }, fails: true},
		"no config":             {change: func(_ *memory, s *stored) { s.fails["Config"] = []error{errFailed} }, fails: true},
		"no blob of the config": {change: func(_ *memory, s *stored) { s.config.Digest = digest.FromString("none") }, fails: true},
		"a config of rubbish": {change: func(m *memory, s *stored) {
			s.config = put(t, m.store.Store, ispec.MediaTypeImageConfig, []byte("rubbish"))
		}, fails: true},
		"blobs of unknown sizes": {change: func(m *memory, _ *stored) { m.fails["content.Info"] = []error{errFailed} }, fails: true},
		"no manifest": {change: func(_ *memory, s *stored) {
			s.unpacked, s.target.Digest = false, digest.FromString("none")
		}, fails: true},
	} {
		r, m := inMemory(t)
		s := putImage(t, m, []byte("layer"))
		c.change(m, s)
		image, err := r.ready(t.Context(), s, "")
		must.Eq(t, c.fails, err != nil, must.Sprint(name, err))
		must.Eq(t, strings.Repeat("one ", c.unpacks), s.unpacks, must.Sprint(name))
		must.MapEmpty(t, m.leases, must.Sprint(name))
		_, known := r.configs.get(s.target.Digest.String() + " one")
		must.Eq(t, !c.fails, known, must.Sprint(name))
		if c.fails {
			continue
		}
		must.Eq(t, "one", image.snapshotter)
		must.Eq(t, "app", image.Config.User)
		*s = stored{target: s.target} // nothing of it is needed any more
		image, err = r.ready(t.Context(), s, "")
		must.NoError(t, err)
		must.Eq(t, "app", image.Config.User)
	}
}

func TestAnImageThatMayNotBeUnpacked(t *testing.T) {
	r, m := inMemory(t)
	s := putImage(t, m)
	layer := ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer + "+lz4", Digest: "sha256:1"}
	must.ErrorIs(t, checkKinds([]ispec.Descriptor{layer}), ErrLayerKind)
	must.NoError(t, checkKinds([]ispec.Descriptor{{MediaType: ispec.MediaTypeImageLayer}}))
	text, err := json.Marshal(ispec.Manifest{MediaType: ispec.MediaTypeImageManifest, Config: s.config, Layers: []ispec.Descriptor{layer}})
	must.NoError(t, err)
	s.target = put(t, m.store.Store, ispec.MediaTypeImageManifest, text)
	must.ErrorIs(t, r.unpack(t.Context(), s, "two"), ErrLayerKind)
	must.Eq(t, "", s.unpacks)
	must.MapEmpty(t, m.leases)
}

// TestLayersAreHeldAgainstTheirConfig, whichever call fails.
func TestLayersAreHeldAgainstTheirConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*memory, *stored)
		says   string
	}{
		"as it says":         {func(*memory, *stored) {}, ""},
		"no manifest":        {func(_ *memory, s *stored) { s.target.Digest = digest.FromString("none") }, "read manifest"},
		"no config":          {func(_ *memory, s *stored) { s.fails["RootFS"] = []error{errFailed} }, "read config"},
		"one layer more":     {func(_ *memory, s *stored) { s.diffs = s.diffs[:1] }, "has 2 layers, and its config 1"},
		"another first one":  {func(_ *memory, s *stored) { s.diffs[0] = digest.FromString("x") }, "as the config says"},
		"another second one": {func(_ *memory, s *stored) { s.diffs[1] = digest.FromString("x") }, "as the config says"},
		"a layer is gone": {func(m *memory, s *stored) {
			must.NoError(t, m.store.Delete(context.Background(), s.diffs[1]))
		}, "read layer"},
		"it cannot be opened":       {func(m *memory, _ *stored) { m.fails["content.ReaderAt"] = []error{nil, errFailed} }, "read layer"},
		"it cannot be written down": {func(m *memory, _ *stored) { m.fails["content.Update"] = []error{errFailed} }, "read layer"},
	} {
		r, m := inMemory(t)
		s := putImage(t, m, []byte("one layer"), []byte("another layer"))
		c.change(m, s)
		err := r.verifyLayers(t.Context(), s)
		if c.says == "" {
			must.NoError(t, err, must.Sprint(name))
		} else {
			must.ErrorContains(t, err, c.says, must.Sprint(name))
		}
		must.Eq(t, 0, m.store.open, must.Sprint(name))
	}
}

// TestWhatIsNoLayerIsNotHeldAgainstAConfig, such as a signature among the layers.
func TestWhatIsNoLayerIsNotHeldAgainstAConfig(t *testing.T) {
	r, m := inMemory(t)
	s := putImage(t, m, []byte("layer"))
	text, err := json.Marshal(ispec.Manifest{MediaType: ispec.MediaTypeImageManifest, Config: s.config, Layers: []ispec.Descriptor{
		put(t, m.store.Store, "text/plain", []byte("signature")), put(t, m.store.Store, ispec.MediaTypeImageLayer, []byte("layer")),
	}})
	must.NoError(t, err)
	s.target = put(t, m.store.Store, ispec.MediaTypeImageManifest, text)
	must.NoError(t, r.verifyLayers(t.Context(), s))
}

// TestALayerIsUnpacked as what it is, all layers of an image within one limit, and closed.
func TestALayerIsUnpacked(t *testing.T) {
	plain := make([]byte, 3000)
	for name, c := range map[string]struct {
		layer   []byte
		limit   int64
		fails   []error
		mounts  []mount.Mount
		refused bool
	}{
		"plain":               {layer: plain},
		"packed":              {layer: gzipOf(t, plain)},
		"with text behind it": {layer: append(make([]byte, 3000), "text"...), limit: 5000, refused: true},
		"too much behind it":  {layer: make([]byte, 3<<20), limit: 2 << 20, refused: true},
		"cut off":             {layer: gzipOf(t, plain)[:20], refused: true},
		"no gzip":             {layer: []byte("\x1f\x8b\x08 no gzip at all"), refused: true},
		"cannot be opened":    {layer: plain, fails: []error{errFailed}, refused: true},
		"nowhere to put it":   {layer: plain, mounts: []mount.Mount{{Type: "bind", Source: "/no/such/directory"}}, refused: true},
	} {
		r, m := inMemory(t)
		r.config.MaxUnpackedBytes = c.limit
		layer := put(t, m.store.Store, ispec.MediaTypeImageLayer, c.layer)
		m.fails["content.ReaderAt"] = c.fails
		mounts := c.mounts
		if mounts == nil {
			mounts = []mount.Mount{{Type: "bind", Source: t.TempDir()}}
		}
		is, err := unpacker{r}.Apply(r.withRoom(t.Context()), layer, mounts)
		must.Eq(t, c.refused, err != nil, must.Sprint(name, err))
		must.Eq(t, 0, m.store.open, must.Sprint(name))
		if c.refused {
			continue
		}
		want := c.layer
		if name == "packed" {
			want = plain
		}
		must.Eq(t, ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer, Size: int64(len(want)), Digest: digest.FromBytes(want)}, is, must.Sprint(name))
	}

	r, m := inMemory(t)
	r.config.MaxUnpackedBytes = 5000
	ctx := r.withRoom(t.Context())
	layer := put(t, m.store.Store, ispec.MediaTypeImageLayer, plain)
	mounts := []mount.Mount{{Type: "bind", Source: t.TempDir()}}
	_, err := unpacker{r}.Apply(ctx, layer, mounts)
	must.NoError(t, err)
	_, err = unpacker{r}.Apply(ctx, layer, mounts)
	must.ErrorIs(t, err, ErrImageTooLarge, must.Sprint("both are of one image"))
}

// TestWhatDescribesAnImageIsBounded by the sizes that its blobs have, whatever they are
// said to be. What is missing is not read.
func TestWhatDescribesAnImageIsBounded(t *testing.T) {
	_, m := inMemory(t)
	store := m.store.Store
	large := bytes.Repeat([]byte(" "), maxDescription+1)
	manifest := func(config ispec.Descriptor, layers ...ispec.Descriptor) ispec.Descriptor {
		config.Size = 1
		text, err := json.Marshal(ispec.Manifest{MediaType: ispec.MediaTypeImageManifest, Config: config, Layers: layers})
		must.NoError(t, err)
		return put(t, store, ispec.MediaTypeImageManifest, text)
	}
	index := func(of ispec.Descriptor) ispec.Descriptor {
		text, err := json.Marshal(ispec.Index{MediaType: ispec.MediaTypeImageIndex, Manifests: []ispec.Descriptor{of}})
		must.NoError(t, err)
		return put(t, store, ispec.MediaTypeImageIndex, text)
	}
	config := put(t, store, ispec.MediaTypeImageConfig, []byte("{}"))
	giant := put(t, store, ispec.MediaTypeImageLayer, large)
	missing := ispec.Descriptor{MediaType: ispec.MediaTypeImageManifest, Digest: digest.FromString("missing"), Size: 7}
	for name, c := range map[string]struct {
		target ispec.Descriptor
		large  bool
	}{
		"small":                      {manifest(config), false},
		"a giant layer":              {manifest(config, giant), false},
		"a giant layer alone":        {giant, false},
		"a giant config":             {manifest(giant), true},
		"a giant config of several":  {manifest(giant, giant), true},
		"in an index":                {index(manifest(giant)), true},
		"a giant manifest":           {put(t, store, ispec.MediaTypeImageManifest, append([]byte("{}"), large...)), true},
		"missing":                    {missing, false},
		"one of an index is missing": {index(missing), false},
		"its config is missing":      {manifest(missing), false},
	} {
		err := checkDescriptions(t.Context(), store, c.target)
		must.Eq(t, c.large, errors.Is(err, ErrImageTooLarge), must.Sprint(name, err))
		must.Eq(t, c.large, err != nil, must.Sprint(name, err))
	}
	for n := range 2 {
		m.fails["content.Info"] = append(make([]error, n), errFailed)
		must.ErrorIs(t, checkDescriptions(t.Context(), m.store, manifest(config)), errFailed)
	}
	m.fails["content.ReaderAt"] = []error{errFailed}
	must.ErrorIs(t, checkDescriptions(t.Context(), m.store, manifest(config)), errFailed)
}

// TestWhatIsToldOfSizes has the figure that an operator has set.
func TestWhatIsToldOfSizes(t *testing.T) {
	must.ErrorContains(t, (&Runtime{config: Config{MaxImageBytes: 3 << 20}}).tooLarge(), "larger than the 3 MiB that")
	left := &room{limit: 5 << 20}
	must.ErrorContains(t, left.take(&left.files, 6<<20), "larger than the 5 MiB that")
	must.ErrorContains(t, checkDescription(ispec.Descriptor{MediaType: "a/b"}, 512<<10+1), "a/b, has 524289 bytes, and 524288 are allowed")
	must.NoError(t, checkDescription(ispec.Descriptor{}, 512<<10))
}

// TestAPullThatFailedChangesNoImage that was there, and leaves none.
func TestAPullThatFailedChangesNoImage(t *testing.T) {
	r, m := inMemory(t)
	m.fails["images.Delete"] = []error{errFailed}
	must.ErrorIs(t, r.restore(t.Context(), "new", m.images["new"]), errFailed)
	must.NoError(t, r.restore(t.Context(), "new", m.images["new"]), must.Sprint("it was not there at all"))
	had := m.images["had"]
	had.Name, had.Labels = "had", map[string]string{"a": "b"}
	m.images["had"] = had
	m.images["new"] = had
	must.NoError(t, r.restore(t.Context(), "new", m.images["none"]))
	must.MapNotContainsKey(t, m.images, "new")
	changed := had
	changed.Labels = nil
	m.images["had"] = changed
	m.fails["images.Update"] = []error{errFailed}
	must.ErrorIs(t, r.restore(t.Context(), "had", had), errFailed)
	must.NoError(t, r.restore(t.Context(), "had", had))
	must.Eq(t, had, m.images["had"])
}

// TestRegistriesAreAsContainerdKnowsThem, by the files of its hosts directory.
func TestRegistriesAreAsContainerdKnowsThem(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "registry.example"), 0o755))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "registry.example", "hosts.toml"), []byte("server = \"https://mirror.example\"\n"), 0o644))
	for hosts, want := range map[string]string{dir: "mirror.example", "": "registry.example"} {
		wrapped := 0
		found, err := (&Runtime{config: Config{HostsDir: hosts}}).hosts(t.Context(), noLogin, func(next http.RoundTripper) http.RoundTripper {
			must.NotNil(t, next)
			wrapped++
			return next
		})("registry.example")
		must.NoError(t, err)
		must.Eq(t, want, found[len(found)-1].Host)
		must.Eq(t, 1, wrapped)
	}
}

// TestALeaseOfAnImageThatIsTooLarge is given up at once, with what it kept.
func TestALeaseOfAnImageThatIsTooLarge(t *testing.T) {
	for _, outcome := range []error{nil, errFailed, ErrImageTooLarge} {
		r, m := inMemory(t)
		ctx, done, err := r.protect(t.Context())
		must.NoError(t, err)
		_, inner, err := r.protect(ctx)
		must.NoError(t, err)
		must.MapLen(t, 1, m.leases)
		inner(ErrImageTooLarge)
		must.MapLen(t, 1, m.leases, must.Sprint("the outer one keeps it"))
		done(outcome)
		must.MapEmpty(t, m.leases)
		must.Eq(t, []leases.DeleteOptions{{Synchronous: errors.Is(outcome, ErrImageTooLarge)}}, m.deleted)
	}
}
