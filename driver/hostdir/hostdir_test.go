// SPDX-License-Identifier: MPL-2.0

package hostdir

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestNamesOlderThan(t *testing.T) {
	dir := t.TempDir()
	names, err := NamesOlderThan(filepath.Join(dir, "none"), time.Now())
	must.NoError(t, err)
	must.SliceEmpty(t, names)
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i, name := range []string{"a", "b", "c"} {
		must.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		must.NoError(t, os.Chtimes(filepath.Join(dir, name), at, at.Add(time.Duration(i)*time.Minute)))
	}
	names, err = NamesOlderThan(dir, at.Add(time.Minute))
	must.NoError(t, err)
	must.Eq(t, []string{"a"}, names)
	file := filepath.Join(dir, "file")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = NamesOlderThan(file, time.Now())
	must.ErrorContains(t, err, "list "+file)
}
