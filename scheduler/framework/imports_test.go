// SPDX-License-Identifier: MPL-2.0

package framework

import (
	"go/build"
	"slices"
	"strings"
	"testing"
)

// The package turns a request into settings and nothing else, so that a job
// submitted twice comes out the same.
func TestImports(t *testing.T) {
	p, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range p.Imports {
		switch {
		case slices.Contains([]string{"net", "net/http", "os", "time", "io/fs", "math/rand", "math/rand/v2"}, path):
			t.Errorf("%s: no network, file, clock or chance here", path)
		case strings.Contains(path, ".") && path != "github.com/nomad-gpu/nomad-gpu/internal/gpu":
			t.Errorf("%s: only the words of a share lie below", path)
		}
	}
}
