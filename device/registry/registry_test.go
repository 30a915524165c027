// SPDX-License-Identifier: MPL-2.0

package registry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A registry that cannot be read is no empty one: with that, slices would get other numbers.
func TestARegistryOfALaterReleaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	later := fmt.Sprintf(`{"version": %d, "devices": {}}`, registryVersion+1)
	if err := os.WriteFile(filepath.Join(dir, registryName), []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), registryName) {
		t.Errorf("it is read: %v", err)
	}
}
