// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file that the configuration names and that is not here is told of; one that is here
// is not.
func TestValidateLooksForNamedFiles(t *testing.T) {
	dir := t.TempDir()
	token, missing, file := filepath.Join(dir, "token"), filepath.Join(dir, "missing"), filepath.Join(dir, "scheduler.hcl")
	for path, text := range map[string]string{token: "t", file: "nomad {\n token_file = \"" + token + "\"\n ca_file = \"" + missing + "\"\n}\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := run("validate", file)
	if code != exitOK || !strings.Contains(stdout, "is valid") || !strings.Contains(stderr, "Warning: nomad.ca_file cannot be read here: open "+missing) || strings.Contains(stderr, "token_file") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}
