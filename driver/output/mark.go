// SPDX-License-Identifier: MPL-2.0

package output

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/hostdir"
)

// mark is the file that says that a start has opened its pipes. It lies in
// the state directory under a name made of the start's ID.
type mark struct{ path string }

func (m mark) exists() bool {
	_, err := os.Stat(m.path)
	return err == nil
}

func (m mark) set() error {
	if err := os.MkdirAll(filepath.Dir(m.path), 0o700); err != nil {
		return fmt.Errorf("mark the task's output: %w", err)
	}
	if err := os.WriteFile(m.path, nil, 0o600); err != nil {
		return fmt.Errorf("mark the task's output: %w", err)
	}
	return nil
}

// Marks are those of all starts, in a directory.
type Marks struct{ dir string }

// MarksIn returns the marks in a directory, which need not exist.
func MarksIn(dir string) Marks { return Marks{dir} }

func (m Marks) of(taskID string) mark {
	id := sha256.Sum256([]byte(taskID))
	return mark{filepath.Join(m.dir, hex.EncodeToString(id[:]))}
}

// markRetention is how long a mark stays. Nomad repeats a start as soon as the
// driver is back.
const markRetention = 24 * time.Hour

// Expire removes the marks of starts that will not be repeated.
func (m Marks) Expire(now time.Time) error {
	old, err := hostdir.NamesOlderThan(m.dir, now.Add(-markRetention))
	problems := []error{err}
	for _, name := range old {
		if err := os.Remove(filepath.Join(m.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}
