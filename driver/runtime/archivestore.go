// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// archiveStore is containerd's content store while one archive is written to it.
// It knows which blobs the archive itself holds: an index can name any digest, and
// containerd has the blobs of all tenants.
type archiveStore struct {
	content.Store
	// refs starts the names of content being written. They would be the same for
	// all archives, and one that was cut off would be continued with another.
	refs string

	mu    sync.Mutex
	holds map[digest.Digest]bool
}

func newArchiveStore(store content.Store) *archiveStore {
	return &archiveStore{Store: store, refs: "archive-" + rand.Text() + "-", holds: map[digest.Digest]bool{}}
}

func (s *archiveStore) add(d digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[d] = true
}

// Writer writes a blob that the archive holds, or a manifest that was made of such.
func (s *archiveStore) Writer(ctx context.Context, options ...content.WriterOpt) (content.Writer, error) {
	var w content.WriterOpts
	for _, option := range options {
		if err := option(&w); err != nil {
			return nil, err
		}
	}
	writer, err := s.Store.Writer(ctx, content.WithRef(s.refs+w.Ref), content.WithDescriptor(w.Desc))
	if errdefs.IsAlreadyExists(err) {
		s.add(w.Desc.Digest)
	}
	if err != nil {
		return nil, err
	}
	return &archiveWriter{writer, s}, nil
}

type archiveWriter struct {
	content.Writer
	store *archiveStore
}

func (w *archiveWriter) Commit(ctx context.Context, size int64, expected digest.Digest, options ...content.Opt) error {
	written := w.Digest()
	err := w.Writer.Commit(ctx, size, expected, options...)
	if err == nil || errdefs.IsAlreadyExists(err) {
		w.store.add(written)
	}
	return err
}

// ReaderAt refuses what describes an image and is too large: it would be read as a
// whole, and the archive names the file that is its configuration. Layers are read in
// parts, and have no type until they were looked into.
func (s *archiveStore) ReaderAt(ctx context.Context, desc ispec.Descriptor) (content.ReaderAt, error) {
	reader, err := s.Store.ReaderAt(ctx, desc)
	if err != nil || desc.MediaType == "" || images.IsLayerType(desc.MediaType) {
		return reader, err
	}
	if err := checkDescription(desc, reader.Size()); err != nil {
		return nil, errors.Join(err, reader.Close())
	}
	return reader, nil
}

// Handle refuses a part of an image that the archive does not hold. It may hold a
// layer in plain that containerd has compressed.
func (s *archiveStore) Handle(ctx context.Context, desc ispec.Descriptor) ([]ispec.Descriptor, error) {
	s.mu.Lock()
	held := s.holds[desc.Digest]
	s.mu.Unlock()
	if held {
		return nil, nil
	}
	info, err := s.Info(ctx, desc.Digest)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.holds[digest.Digest(info.Labels[labels.LabelUncompressed])] {
		return nil, nil
	}
	return nil, fmt.Errorf("it names %s, which it does not hold", desc.Digest)
}

var _ images.Handler = (*archiveStore)(nil)
