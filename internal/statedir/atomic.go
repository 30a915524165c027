// SPDX-License-Identifier: MPL-2.0

package statedir

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// WriteFile replaces a file as a whole: a reader, also one after a crash, sees
// the old content or the new, never a part. The directory must exist.
func WriteFile(path string, content []byte, mode os.FileMode) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if err := fill(tmp, content, mode); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func fill(f *os.File, content []byte, mode os.FileMode) error {
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// writeJSON leaves an unchanged file alone, so that readers may watch it.
func writeJSON(path string, state any) error {
	text, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return fmt.Errorf("encode state %s: %w", path, err)
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return WriteFile(path, text, 0o600)
}
