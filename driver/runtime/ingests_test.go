// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/shoenig/test/must"
)

// TestAStallingRegistryStopsNoOtherPull of the same layer: containerd would have one
// writer for both.
func TestAStallingRegistryStopsNoOtherPull(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, r *Runtime) {
		ctx := t.Context()
		archive := boxArchive(t, "shared"+r.config.Owner)
		stalls, good := newHub(t, archive), newHub(t, archive)
		serve, reached, hang := stalls.Config.Handler, make(chan struct{}), make(chan struct{})
		// The registry ends with the test, also where that fails, and waits for those whom it serves.
		release := sync.OnceFunc(func() { close(hang) })
		t.Cleanup(release)
		var once atomic.Bool
		stalls.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.URL.Path, "/blobs/") {
				if once.CompareAndSwap(false, true) {
					close(reached)
				}
				<-hang
				return
			}
			serve.ServeHTTP(w, req)
		})
		stalled, give := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			_, err := r.Pull(stalled, Pull{Ref: stalls.ref(), Credentials: noLogin})
			ended <- err
		}()
		<-reached
		_, err := r.Pull(ctx, Pull{Ref: good.ref(), Credentials: noLogin})
		must.NoError(t, err)
		release()
		give()
		must.Error(t, <-ended)
		left, err := r.client.ContentStore().ListStatuses(ctx, "")
		must.NoError(t, err)
		for _, status := range left {
			must.StrNotContains(t, status.Ref, "pull-", must.Sprint("it was written in part"))
		}
	})
}

// TestEachPartIsSeenOnce, however often an image names it, and what comes of it comes of
// all its names.
func TestEachPartIsSeenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := errors.New("failed")
		var asked atomic.Int32
		begin := make(chan struct{})
		handler := onceEach(images.HandlerFunc(func(_ context.Context, desc ispec.Descriptor) ([]ispec.Descriptor, error) {
			asked.Add(1)
			<-begin
			return []ispec.Descriptor{desc}, failed
		}))
		layer := ispec.Descriptor{MediaType: ispec.MediaTypeImageLayer, Digest: digest.FromString("a")}
		var ended atomic.Int32
		for range 700 {
			go func() {
				if _, err := handler.Handle(t.Context(), layer); errors.Is(err, failed) {
					ended.Add(1)
				}
			}()
		}
		synctest.Wait()
		must.Eq(t, 1, asked.Load())
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := handler.Handle(over, layer)
		must.ErrorIs(t, err, context.Canceled)
		close(begin)
		synctest.Wait()
		must.Eq(t, 700, ended.Load())
		layer.MediaType = ispec.MediaTypeImageConfig
		children, err := handler.Handle(t.Context(), layer)
		must.ErrorIs(t, err, failed)
		must.Len(t, 1, children)
		must.Eq(t, 2, asked.Load(), must.Sprint("as something else it is another part"))
	})
}

// TestLayersAreCounted: as many as Docker builds at most, before any is fetched.
func TestLayersAreCounted(t *testing.T) {
	for count, ok := range map[int]bool{0: true, 127: true, 128: false, 700: false} {
		parts := make([]ispec.Descriptor, count+1)
		for i := range parts {
			parts[i].MediaType = ispec.MediaTypeImageLayer
		}
		manifest := ispec.Descriptor{MediaType: ispec.MediaTypeImageManifest}
		_, err := (&Runtime{}).boundedHandler(images.HandlerFunc(func(context.Context, ispec.Descriptor) ([]ispec.Descriptor, error) {
			return parts, nil
		})).Handle(t.Context(), manifest)
		must.Eq(t, ok, err == nil, must.Sprint(count, err))
		must.Eq(t, !ok, errors.Is(err, ErrImageTooLarge))
	}
}

// TestAnIndexIsVisitedOncePerDigest: one that names another a thousand times, which names
// a third a thousand times, would be read a million times.
func TestAnIndexIsVisitedOncePerDigest(t *testing.T) {
	_, m := inMemory(t)
	next := put(t, m.store.Store, ispec.MediaTypeImageIndex, []byte(`{"schemaVersion":2,"manifests":[]}`))
	for range 2 {
		entry := `{"mediaType":"` + next.MediaType + `","digest":"` + next.Digest.String() + `","size":1}`
		next = put(t, m.store.Store, ispec.MediaTypeImageIndex, []byte(`{"schemaVersion":2,"manifests":[`+entry+strings.Repeat(","+entry, 999)+`]}`))
	}
	must.NoError(t, checkDescriptions(t.Context(), m.store, next))
	must.Eq(t, 3, m.times("content.Info"))
}

var _ content.Store = (*ownIngests)(nil)
