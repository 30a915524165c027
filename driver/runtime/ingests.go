// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"crypto/rand"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ownIngests is containerd's content store, in which each pull writes for itself.
// Containerd's client names an ingest by its digest, and any other pull of the same
// layer waits until that writer has ended, for as long as its registry likes.
type ownIngests struct{ content.Store }

type ingestsKey struct{}

// ingests are what one pull writes.
type ingests struct {
	prefix string
	mu     sync.Mutex
	refs   []string
}

// withOwnIngests gives a context ingests of its own; abort removes the unfinished
// ones.
func (r *Runtime) withOwnIngests(ctx context.Context) (_ context.Context, abort func()) {
	all := &ingests{prefix: "pull-" + rand.Text() + "-"}
	return context.WithValue(ctx, ingestsKey{}, all), func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		all.mu.Lock()
		defer all.mu.Unlock()
		for _, ref := range all.refs {
			_ = r.client.ContentStore().Abort(ctx, ref) // a finished ingest is none any more
		}
	}
}

// Writer opens a writer that no other pull has.
func (s *ownIngests) Writer(ctx context.Context, options ...content.WriterOpt) (content.Writer, error) {
	all, ok := ctx.Value(ingestsKey{}).(*ingests)
	if !ok {
		return s.Store.Writer(ctx, options...)
	}
	var w content.WriterOpts
	for _, option := range options {
		if err := option(&w); err != nil {
			return nil, err
		}
	}
	ref := all.prefix + w.Ref
	all.mu.Lock()
	all.refs = append(all.refs, ref)
	all.mu.Unlock()
	return s.Store.Writer(ctx, content.WithRef(ref), content.WithDescriptor(w.Desc))
}

// onceEach has a handler see each part of an image once, however often the image names it.
// A second caller waits for the first one's result.
func onceEach(next images.Handler) images.Handler {
	type part struct {
		digest digest.Digest
		kind   string
	}
	type visit struct {
		over chan struct{}
		err  error
	}
	var mu sync.Mutex
	seen := map[part]*visit{}
	return images.HandlerFunc(func(ctx context.Context, desc ispec.Descriptor) (children []ispec.Descriptor, err error) {
		mu.Lock()
		key := part{desc.Digest, desc.MediaType}
		first := seen[key]
		if first == nil {
			first = &visit{over: make(chan struct{})}
			seen[key] = first
			mu.Unlock()
			defer close(first.over)
			children, first.err = next.Handle(ctx, desc)
			return children, first.err
		}
		mu.Unlock()
		select {
		case <-first.over:
			return nil, first.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
}
