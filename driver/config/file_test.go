package config

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

// Passwords are kept out of what is shown of a configuration, those of registries too.
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
	must.ErrorContains(t, Validate(path), "read configuration "+path+": stats_interval")
	must.SliceEmpty(t, Secrets(path))
}
