// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEnvironmentsAreReadUpToABound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "environ")
	if err := os.WriteFile(path, make([]byte, 3*maxEnvironment), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readBounded(path); len(got) != maxEnvironment || err != nil {
		t.Errorf("%d bytes were read: %v", len(got), err)
	}
	if got, err := readBounded(path + "-gone"); got != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no process: %q, %v", got, err)
	}
	if got := Environ(os.Getpid()); len(got) == 0 {
		t.Error("this process has no environment")
	}
}

func TestEnvironmentsOfProcesses(t *testing.T) {
	mine := strings.Join(os.Environ(), "\x00")
	found := false
	for env, err := range readEnvironments {
		if err != nil {
			t.Fatal(err)
		}
		found = found || mine != "" && strings.Contains(string(env), mine[:len(mine)/2])
	}
	if !found {
		t.Error("this process is not among them")
	}
}
