package runtime

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
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
