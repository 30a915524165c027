// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"go/build"
	"slices"
	"strings"
	"testing"
)

// The package decides about bytes alone, so that the same job and decision give
// the same job on every replica and in every test.
func TestImports(t *testing.T) {
	p, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	const ours = "github.com/nomad-gpu/nomad-gpu/"
	allowed := []string{ours + "internal/gpu", ours + "scheduler/framework", "github.com/go-json-experiment/json/jsontext"}
	for _, path := range p.Imports {
		switch {
		case slices.Contains([]string{"net", "net/http", "os", "time", "io/fs", "math/rand", "math/rand/v2"}, path):
			t.Errorf("%s: no network, file, clock or chance here", path)
		case strings.Contains(path, ".") && !slices.Contains(allowed, path):
			t.Errorf("%s: only the request grammar, the frameworks' settings and JSON lie below", path)
		}
	}
}
