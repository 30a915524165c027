// SPDX-License-Identifier: MPL-2.0

package output

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/rooted"
)

// TestMarks: a mark stays until its start will not be repeated.
func TestMarks(t *testing.T) {
	marks := MarksIn(filepath.Join(t.TempDir(), "outputs"))
	mark := marks.of("task")
	must.False(t, mark.exists())
	must.NoError(t, mark.set())
	must.True(t, mark.exists())
	must.False(t, marks.of("other").exists())
	must.NoError(t, marks.Expire(time.Now()))
	must.True(t, mark.exists())
	must.NoError(t, marks.Expire(time.Now().Add(24*time.Hour-time.Minute)))
	must.True(t, mark.exists())
	must.NoError(t, marks.Expire(time.Now().Add(24*time.Hour+time.Minute)))
	must.False(t, mark.exists())
}

// TestMarksThatCannotBeSet: without its mark a start that is repeated would write to pipes
// that were closed.
func TestMarksThatCannotBeSet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "outputs")
	must.NoError(t, os.WriteFile(path, nil, 0o600))
	must.ErrorContains(t, MarksIn(path).of("task").set(), "mark the task's output: ")
	must.Error(t, MarksIn(path).Expire(time.Now()))
	must.NoError(t, os.Remove(path))
	must.NoError(t, os.MkdirAll(filepath.Join(MarksIn(path).of("task").path, "inner"), 0o700))
	must.ErrorContains(t, MarksIn(path).of("task").set(), "is a directory")
	must.Error(t, MarksIn(path).Expire(time.Now().Add(markRetention+time.Minute)))
}

// TestNewestLog: a task of another driver may fill the directory that they lie in.
func TestNewestLog(t *testing.T) {
	path := t.TempDir()
	dir, err := rooted.OpenHost(path)
	must.NoError(t, err)
	defer dir.Close()
	made := 0
	add := func(names ...string) {
		for _, name := range names {
			must.NoError(t, os.WriteFile(filepath.Join(path, name), nil, 0o600))
		}
		made += len(names)
	}
	newest := func() string {
		t.Helper()
		name, err := newestLog(dir, "web.stdout.")
		must.NoError(t, err)
		return name
	}
	must.Eq(t, "web.stdout.0", newest())
	add("web.stdout.2", "web.stdout.10", "web.stderr.11", "web.stdout.x", "web.stdout.-12", "web.stdout.99999999999999999999", "other.web.stdout.13")
	must.Eq(t, "web.stdout.10", newest())
	for made < maxLogFiles {
		add("x" + strconv.Itoa(made))
	}
	must.Eq(t, "web.stdout.10", newest())
	add("one more")
	_, err = newestLog(dir, "web.stdout.")
	must.ErrorContains(t, err, "more than 4096 files")
}
