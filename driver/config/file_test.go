// SPDX-License-Identifier: MPL-2.0

package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

// Passwords never show in a printed configuration, those of registries included.
func TestSecretsOfAConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.hcl")
	must.NoError(t, os.WriteFile(path, []byte(`
registry {
  server_address = "a.example"
  username       = "one"
  password       = "of a registry"
}
registry {
  server_address = "b.example"
  username       = "two"
  password       = "of another"
}
auth {
  username = "all"
  password = "of all"
}`), 0o600))
	must.Eq(t, []string{"of all", "of a registry", "of another"}, Secrets(path))
	must.NoError(t, os.WriteFile(path, []byte(`stats_interval = "soon"`), 0o600))
	_, err := Validate(path)
	must.ErrorContains(t, err, "read configuration "+path+": stats_interval")
	must.SliceEmpty(t, Secrets(path))
}

// A setting to no effect is a warning.
func TestSettingsWithoutEffect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.hcl")
	for text, want := range map[string]int{`volumes { allow_paths = ["/srv"] }`: 1, "volumes {\n enabled = true\n allow_paths = [\"/srv\"]\n}": 0, "": 0} {
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		warnings, err := Validate(path)
		must.NoError(t, err)
		must.SliceLen(t, want, warnings, must.Sprint(text))
	}
}
