// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/docker"
)

// TestDockerOptions holds the list against which docs/docker.md is tested against
// the schema of Nomad's own docker driver, in the version of go.mod.
func TestDockerOptions(t *testing.T) {
	schema, err := docker.NewDockerDriver(context.Background(), hclog.NewNullLogger()).TaskConfigSchema()
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(schema.GetObject().GetAttributes()))
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "driver", "testdata", "docker-options.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Fields(string(text)); !slices.Equal(got, want) {
		t.Errorf("the driver has %q, the list %q", got, want)
	}
}
