// SPDX-License-Identifier: MPL-2.0

package runtime

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/shoenig/test/must"
)

// A layer's files take no more memory than is counted for them, whatever their kind, their names and
// their attributes: what all layers may have together is a figure in docs/security.md.
func TestNamesTakeNoMoreThanIsCounted(t *testing.T) {
	const count = 1000
	long := string(bytes.Repeat([]byte("x"), 90))
	for name, header := range map[string]func(n int) tar.Header{
		"files":       func(n int) tar.Header { return tar.Header{Name: fmt.Sprint(n), Typeflag: tar.TypeReg} },
		"directories": func(n int) tar.Header { return tar.Header{Name: fmt.Sprint(n, "/"), Typeflag: tar.TypeDir} },
		"links": func(n int) tar.Header {
			return tar.Header{Name: fmt.Sprint(n), Linkname: "a", Typeflag: tar.TypeSymlink}
		},
		"long names": func(n int) tar.Header { return tar.Header{Name: fmt.Sprint(long, n, "/"), Typeflag: tar.TypeDir} },
		"an attribute": func(n int) tar.Header {
			return tar.Header{Name: fmt.Sprint(n, "/"), Typeflag: tar.TypeDir, PAXRecords: map[string]string{"a.b": "1"}}
		},
		"an extended attribute": func(n int) tar.Header {
			return tar.Header{Name: fmt.Sprint(n, "/"), Typeflag: tar.TypeDir, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "1"}}
		},
		"extended attributes": func(n int) tar.Header {
			pax := map[string]string{}
			for i := range 9 {
				pax[fmt.Sprint("SCHILY.xattr.user.", i)] = "1"
			}
			return tar.Header{Name: fmt.Sprint(n, "/"), Typeflag: tar.TypeDir, PAXRecords: pax}
		},
		"many attributes": func(n int) tar.Header {
			pax := map[string]string{}
			for i := range 9 {
				pax[fmt.Sprint("a.", i)] = "1"
			}
			return tar.Header{Name: fmt.Sprint(n, "/"), Typeflag: tar.TypeDir, PAXRecords: pax}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var layer bytes.Buffer
			w := tar.NewWriter(&layer)
			for n := range count {
				h := header(n)
				h.Mode = 0o755
				must.NoError(t, w.WriteHeader(&h))
			}
			must.NoError(t, w.Close())
			var counts names
			seen, before, took := 0, 0, 0
			_, err := archive.Apply(t.Context(), t.TempDir(), &layer, archive.WithFilter(func(h *tar.Header) (bool, error) {
				switch seen++; seen {
				case 10: // by then the reader has all that it makes once
					before = heapBytes()
				case count:
					took = heapBytes() - before
				}
				return true, counts.add(context.Background(), h)
			}))
			must.NoError(t, err)
			t.Logf("%d bytes each, counted are %d", took/count, counts.bytes/count)
			must.LessEq(t, counts.bytes+16<<10, took)
		})
	}
}
