// SPDX-License-Identifier: MPL-2.0

package house

import (
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/internal/documents"
)

// Every Go file says its license, as scanners read it.
func TestGoFilesSayTheirLicense(t *testing.T) {
	without := 0
	for _, path := range documents.Files(t, root, ".go") {
		if !strings.HasPrefix(read(t, path), "// SPDX-License-Identifier: MPL-2.0\n\n") {
			if without++; without <= 5 {
				t.Errorf("%s does not begin with an SPDX line; internal/house/spdx writes it", path)
			}
		}
	}
	if without > 5 {
		t.Errorf("%d files do not", without)
	}
}
