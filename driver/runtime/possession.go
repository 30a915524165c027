// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// Containerd fetches no blob that it has already, for whomever it fetched it: whoever
// has a registry could put the layers of other tenants' images, by their digests, into
// an image of his own. So an image is usable only when its registry has shown that it
// has each blob: by sending it or, where it sent that blob once before, by giving access
// to it now. Another registry's word is nothing: its owner may be the one who lies.

// unproven is the access of an image whose registry has not shown yet that it has all of
// it. No login has that key, so the image is unused.
const unproven = "unproven"

// registryLabel starts the labels on blobs that name the registries which sent them.
const registryLabel = "io.nomad-gpu.registry."

// maxRegistries is how many of them a blob names: one server has as many names as its owner
// likes, and containerd hands out all labels with each answer about the blob, which every
// tenant's image may have. The others send it each time.
const maxRegistries = 100

func registriesOf(info content.Info) int {
	count := 0
	for label := range info.Labels {
		if strings.HasPrefix(label, registryLabel) {
			count++
		}
	}
	return count
}

// ErrNotPossessed means that a registry names a part that it does not give.
var ErrNotPossessed = errors.New("the registry names a part of the image that it does not give")

// provingResolver is a resolver that knows which blobs its registry sent.
type provingResolver struct {
	remotes.Resolver
	host string

	fetcher remotes.Fetcher // of the one pull that the resolver is for
	mu      sync.Mutex
	sent    map[digest.Digest]bool
}

func newProvingResolver(resolver remotes.Resolver, host string) *provingResolver {
	return &provingResolver{Resolver: resolver, host: host, sent: map[digest.Digest]bool{}}
}

// SetOptions passes on the client's settings, which are for containerd's own resolver.
func (r *provingResolver) SetOptions(options ...transfer.ImageResolverOption) {
	if inner, ok := r.Resolver.(remotes.ResolverWithOptions); ok {
		inner.SetOptions(options...)
	}
}

// Fetcher returns a fetcher that notes the blobs that were sent.
func (r *provingResolver) Fetcher(ctx context.Context, ref string) (remotes.Fetcher, error) {
	fetcher, err := r.Resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	r.fetcher = fetcher
	return remotes.FetcherFunc(func(ctx context.Context, desc ispec.Descriptor) (io.ReadCloser, error) {
		// A manifest may name other servers, which could be any that the node reaches.
		desc.URLs = nil
		body, err := fetcher.Fetch(ctx, desc)
		if err != nil {
			return nil, err
		}
		return r.noting(body, desc.Digest), nil
	}), nil
}

// noting notes a blob as sent once all of it was read. It cannot seek, so that no
// download that another pull began is continued.
func (r *provingResolver) noting(body io.ReadCloser, blob digest.Digest) io.ReadCloser {
	verifier := blob.Verifier()
	return &notingBody{Closer: body, Reader: io.TeeReader(body, verifier), ended: func() {
		if verifier.Verified() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sent[blob] = true
		}
	}}
}

type notingBody struct {
	io.Reader
	io.Closer
	ended func()
}

func (b *notingBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended()
	}
	return n, err
}

// provers is how many blobs are asked for at once.
const provers = 4

// prove makes the registry show that it has what an image runs: its config and layers.
func (r *provingResolver) prove(ctx context.Context, handle client.Image) error {
	store := handle.ContentStore()
	manifest, err := images.Manifest(ctx, store, handle.Target(), handle.Platform())
	if err != nil {
		return fmt.Errorf("read manifest of image %q: %w", handle.Name(), err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(provers)
	asked := map[digest.Digest]bool{}
	for _, blob := range append(manifest.Layers, manifest.Config) {
		if asked[blob.Digest] {
			continue
		}
		asked[blob.Digest] = true
		group.Go(func() error {
			if err := r.proveBlob(ctx, store, blob.Digest); err != nil {
				return fmt.Errorf("ask the registry for %s: %w", blob.Digest, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func (r *provingResolver) proveBlob(ctx context.Context, store content.Store, blob digest.Digest) error {
	info, err := store.Info(ctx, blob)
	if err != nil {
		return err
	}
	label := registryLabel + r.host
	known := info.Labels[label] != ""
	r.mu.Lock()
	sent := r.sent[blob]
	r.mu.Unlock()
	if !sent {
		if err := r.ask(ctx, info, known); err != nil {
			return err
		}
	}
	if known || registriesOf(info) >= maxRegistries {
		return nil
	}
	info.Labels = map[string]string{label: "true"}
	_, err = store.Update(ctx, info, "labels."+label)
	return err
}

// ask fetches a blob once more: its beginning where the registry is known to have sent
// it, so that giving access to it is its own to decide, and else all of it.
func (r *provingResolver) ask(ctx context.Context, info content.Info, known bool) error {
	// Nothing of what the manifest says of the blob: that could name another server.
	body, err := r.fetcher.Fetch(ctx, ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer, Digest: info.Digest, Size: info.Size})
	if err != nil {
		return err
	}
	defer body.Close()
	verifier := info.Digest.Verifier()
	if known {
		_, err = body.Read(make([]byte, 1))
	} else {
		_, err = io.Copy(verifier, io.LimitReader(body, info.Size))
	}
	switch {
	case errdefs.IsNotFound(err):
		return fmt.Errorf("%w: %w", ErrNotPossessed, err)
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case !known && !verifier.Verified():
		return fmt.Errorf("%w: what it sends is something else", ErrNotPossessed)
	}
	return nil
}
