package gpu

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// What the environment tells the bundle.
const (
	// requireVariable makes what would be skipped a failure.
	requireVariable = "NOMAD_GPU_REQUIRE"
	// rootVariable is the root of a driver outside the default paths.
	rootVariable = "NOMAD_GPU_DRIVER_ROOT"
	// configVariable is a file with the plugin's configuration, in place of both:
	// this repository's own test names a simulated machine in it.
	configVariable = "NOMAD_GPU_CONFIG"
)

// unavailable skips a test, or fails it where everything is required.
func unavailable(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv(requireVariable) != "" {
		t.Fatalf("required, and not available: "+format, args...)
	}
	t.Skipf(format, args...)
}

// figure prints what was measured, in a line that can be searched for.
func figure(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf("figure: "+format, args...)
}

func driver() nvidia.Driver { return nvidia.Driver{Root: os.Getenv(rootVariable)} }

// configuration is the plugin's that finds the driver; empty for the defaults.
func configuration(t *testing.T) string {
	t.Helper()
	if given := os.Getenv(configVariable); given != "" {
		return given
	}
	root := os.Getenv(rootVariable)
	if root == "" {
		return ""
	}
	path := filepath.Join(t.TempDir(), "plugin.hcl")
	if err := os.WriteFile(path, fmt.Appendf(nil, "driver_root = %q\n", root), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const self = "/proc/self/exe"

// look takes inventory, or skips on a machine without a GPU.
func look(t *testing.T) inventory.Inventory {
	t.Helper()
	inventory, err := inventory.Take(configuration(t))
	if errors.Is(err, nvidia.ErrAbsent) {
		unavailable(t, "this machine has no NVIDIA driver: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(inventory.Devices) == 0 {
		unavailable(t, "this machine has no NVIDIA GPU")
	}
	return inventory
}

// plain is the first GPU that is not cut by MIG.
func plain(t *testing.T) inventory.Entry {
	t.Helper()
	for _, g := range look(t).Devices {
		if g.Parent == "" && g.Mode != gpu.ModeMIG {
			return g
		}
	}
	unavailable(t, "every GPU of this machine is in MIG mode")
	return inventory.Entry{}
}

// idle is plain, and skips where other programs would change what is measured.
func idle(t *testing.T) inventory.Entry {
	t.Helper()
	g := plain(t)
	for _, row := range smi(t, "--query-compute-apps=pid,name", "-i", g.UUID) {
		unavailable(t, "GPU %s is in use by %q; stop it, or run this on an idle GPU", g.UUID, row)
	}
	return g
}

// smi asks nvidia-smi, or skips where there is none.
func smi(t *testing.T, args ...string) [][]string {
	t.Helper()
	out, err := exec.Command(driver().Program("nvidia-smi"), append(args, "--format=csv,noheader,nounits")...).Output()
	if err != nil {
		unavailable(t, "nvidia-smi cannot be asked: %v: %s", err, out)
	}
	r := csv.NewReader(strings.NewReader(string(out)))
	r.TrimLeadingSpace = true
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatalf("nvidia-smi answers %q: %v", out, err)
	}
	return rows
}
