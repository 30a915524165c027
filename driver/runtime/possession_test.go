// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
)

// labeled is a content store of one blob, as far as its labels go.
type labeled struct {
	content.Store
	labels map[string]string
}

func (l labeled) Info(_ context.Context, d digest.Digest) (content.Info, error) {
	return content.Info{Digest: d, Labels: maps.Clone(l.labels)}, nil
}

func (l labeled) Update(_ context.Context, info content.Info, _ ...string) (content.Info, error) {
	maps.Copy(l.labels, info.Labels)
	return info, nil
}

// TestABlobNamesSoManyRegistries, whatever names the owner of one gives it: the labels come with
// each answer about the blob, also to others.
func TestABlobNamesSoManyRegistries(t *testing.T) {
	blob := digest.FromString("a layer of everybody's")
	store := labeled{labels: map[string]string{"containerd.io/uncompressed": "x"}}
	for port := range 3 * maxRegistries {
		r := newProvingResolver(nil, fmt.Sprintf("evil.example:%d", port))
		r.sent[blob] = true
		must.NoError(t, r.proveBlob(t.Context(), store, blob))
		must.Eq(t, min(port, maxRegistries-1)+2, len(store.labels))
	}
	must.Eq(t, "true", store.labels[registryLabel+"evil.example:0"])
}

// TestOnlyAWholeBlobWasSent: what is cut off or another's proves nothing.
func TestOnlyAWholeBlobWasSent(t *testing.T) {
	for body, want := range map[string]bool{"the layer": true, "the lay": false, "another..": false, "": false} {
		r := newProvingResolver(nil, "registry.example")
		blob := digest.FromString("the layer")
		read := r.noting(io.NopCloser(strings.NewReader(body)), blob)
		_, err := io.ReadAll(read)
		must.NoError(t, err)
		must.NoError(t, read.Close())
		must.Eq(t, want, r.sent[blob], must.Sprintf("%q", body))
	}
}

// registry is a resolver whose fetcher answers what a test says.
type registry struct {
	remotes.Resolver
	refuses error
	fetch   func(desc ispec.Descriptor) (io.ReadCloser, error)
	options int
}

func (r *registry) SetOptions(options ...transfer.ImageResolverOption) { r.options += len(options) }

func (r *registry) Fetcher(context.Context, string) (remotes.Fetcher, error) {
	return remotes.FetcherFunc(func(_ context.Context, desc ispec.Descriptor) (io.ReadCloser, error) { return r.fetch(desc) }), r.refuses
}

// TestARegistryIsAskedAtItsOwnPlace, wherever else a manifest says that its parts are.
func TestARegistryIsAskedAtItsOwnPlace(t *testing.T) {
	inner := &registry{fetch: func(desc ispec.Descriptor) (io.ReadCloser, error) {
		if len(desc.URLs) > 0 {
			t.Error("another server is asked")
		}
		return io.NopCloser(strings.NewReader("a layer")), nil
	}}
	r := newProvingResolver(inner, "registry.example")
	r.SetOptions(func(*transfer.ImageResolverOptions) {})
	must.Eq(t, 1, inner.options)
	newProvingResolver(nil, "registry.example").SetOptions()
	fetcher, err := r.Fetcher(t.Context(), "x")
	must.NoError(t, err)
	blob := digest.FromString("a layer")
	body, err := fetcher.Fetch(t.Context(), ispec.Descriptor{Digest: blob, URLs: []string{"http://10.0.0.1/secret"}})
	must.NoError(t, err)
	_, err = io.ReadAll(body)
	must.NoError(t, err)
	must.True(t, r.sent[blob])
	inner.fetch = func(ispec.Descriptor) (io.ReadCloser, error) { return nil, errFailed }
	_, err = fetcher.Fetch(t.Context(), ispec.Descriptor{Digest: blob})
	must.ErrorIs(t, err, errFailed)
	inner.refuses = errFailed
	_, err = r.Fetcher(t.Context(), "x")
	must.ErrorIs(t, err, errFailed)
}

// TestWhatProvesThatARegistryHasABlob: all of it, or the beginning where it sent it once.
func TestWhatProvesThatARegistryHasABlob(t *testing.T) {
	const text = "a layer"
	refused := iotest.ErrReader(errFailed)
	for name, c := range map[string]struct {
		body  io.Reader
		fetch error
		known bool
		err   error
	}{
		"all of it":                  {body: strings.NewReader(text)},
		"too much":                   {body: strings.NewReader(text + " and more")},
		"too little":                 {body: strings.NewReader(text[:3]), err: ErrNotPossessed},
		"nothing":                    {body: strings.NewReader(""), err: ErrNotPossessed},
		"something else":             {body: strings.NewReader("x" + text[1:]), err: ErrNotPossessed},
		"an error":                   {body: refused, err: errFailed},
		"it is not there":            {body: iotest.ErrReader(errdefs.ErrNotFound), err: ErrNotPossessed},
		"no answer":                  {fetch: errFailed, err: errFailed},
		"the beginning":              {body: strings.NewReader("x"), known: true},
		"no beginning":               {body: strings.NewReader(""), known: true},
		"an error of the beginning":  {body: refused, known: true, err: errFailed},
		"the beginning is not there": {body: iotest.ErrReader(errdefs.ErrNotFound), known: true, err: ErrNotPossessed},
	} {
		closed := false
		r := newProvingResolver(&registry{fetch: func(desc ispec.Descriptor) (io.ReadCloser, error) {
			must.Eq(t, int64(len(text)), desc.Size)
			return &closing{c.body, &closed}, c.fetch
		}}, "registry.example")
		_, err := r.Fetcher(t.Context(), "x")
		must.NoError(t, err)
		err = r.ask(t.Context(), content.Info{Digest: digest.FromString(text), Size: int64(len(text))}, c.known)
		must.ErrorIs(t, err, c.err, must.Sprint(name))
		must.Eq(t, c.fetch == nil, closed, must.Sprint(name))
	}
}

// TestFourBlobsAreAskedForAtOnce, and each of them once.
func TestFourBlobsAreAskedForAtOnce(t *testing.T) {
	_, m := inMemory(t)
	var layers [][]byte
	for i := range 10 {
		layers = append(layers, []byte(fmt.Sprint("layer ", i)))
	}
	s := putImage(t, m, layers...)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		asked := map[digest.Digest]int{}
		release := make(chan struct{})
		var fails error
		r := newProvingResolver(&registry{fetch: func(desc ispec.Descriptor) (io.ReadCloser, error) {
			mu.Lock()
			asked[desc.Digest]++
			mu.Unlock()
			<-release
			reader, err := m.store.Store.ReaderAt(t.Context(), desc)
			return io.NopCloser(content.NewReader(reader)), errors.Join(err, fails)
		}}, "registry.example")
		_, err := r.Fetcher(t.Context(), "x")
		must.NoError(t, err)
		proven := make(chan error)
		go func() { proven <- r.prove(t.Context(), s) }()
		synctest.Wait()
		mu.Lock()
		must.MapLen(t, 4, asked)
		mu.Unlock()
		close(release)
		must.NoError(t, <-proven)
		must.MapLen(t, 11, asked)
		fails = errFailed
		must.ErrorIs(t, r.prove(t.Context(), s), errFailed)
		fails = nil
		for _, call := range []string{"content.Info", "content.Update"} {
			m.fails[call] = []error{errFailed}
			must.ErrorIs(t, r.prove(t.Context(), s), errFailed, must.Sprint(call))
		}
		s.target.Digest = digest.FromString("none")
		must.ErrorContains(t, r.prove(t.Context(), s), "read manifest")
	})
}
