// SPDX-License-Identifier: MPL-2.0

package server

import (
	"os"
	"path/filepath"
	"testing"
)

// TestLogFileIsRotated renames the file as logrotate does: what was begun ends
// there, what comes next is in a new one.
func TestLogFileIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.json")
	l, err := OpenLogFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write := func(text string) {
		t.Helper()
		if _, err := l.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write("two\n")
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	write("three\n")
	for name, want := range map[string]string{path + ".1": "one\ntwo\n", path: "three\n"} {
		if text, err := os.ReadFile(name); err != nil || string(text) != want {
			t.Errorf("%s holds %q (%v), want %q", name, text, err, want)
		}
	}
	// Where no file can be made, the open one serves on.
	if err := os.Rename(filepath.Dir(path), filepath.Dir(path)+".away"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err == nil {
		t.Error("a file was opened in a folder that is not there")
	}
	write("four\n")
}
