// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHAMiLockDirectoryIsNoLink(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(dir, "locks")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "lib"), "")
	if err := os.Chmod(filepath.Join(dir, "lib"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := testConfig(t, `hami {
		library  = "`+dir+`/lib"
		lock_dir = "`+dir+`/locks"
	}`)
	if err := checkHAMi(*c.HAMi); err == nil || !strings.Contains(err.Error(), "has mode L") {
		t.Errorf("got %v", err)
	}
}
