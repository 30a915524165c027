// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"encoding/csv"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
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
	// figuresVariable is the file that figures are added to.
	figuresVariable = "NOMAD_GPU_FIGURES"
)

// unavailable skips a test, or fails it where everything is required.
func unavailable(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv(requireVariable) != "" {
		t.Fatalf("required, and not available: "+format, args...)
	}
	t.Skipf(format, args...)
}

// figure prints a measurement in a line that can be searched for, and adds it to the file
// of figures at once: a bundle that is ended loses none.
func figure(t *testing.T, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	t.Log("figure: " + line)
	path := os.Getenv(figuresVariable)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintf(f, "%s %s: %s\n", time.Now().UTC().Format("15:04:05.000"), t.Name(), line)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
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

// inNVML is what NVML says of a process on the GPU.
func inNVML(t *testing.T, uuid string, pid int) (hardware.Process, bool) {
	t.Helper()
	p, found, err := process(uuid, pid)
	if err != nil {
		unavailable(t, "NVML cannot be asked: %v", err)
	}
	return p, found
}

// shown is the same in words, for a figure beside others.
func shown(uuid string, pid int) string {
	p, found, err := process(uuid, pid)
	switch {
	case err != nil:
		return err.Error()
	case !found:
		return "the process is not there"
	}
	return fmt.Sprintf("the process has %d MiB, as an MPS client: %v, not told: %v", p.MemoryMiB, p.MPS, p.MPSUnknown)
}

func process(uuid string, pid int) (hardware.Process, bool, error) {
	b := nvidia.New(driver().Library(), 10*time.Second)
	defer b.Close()
	if _, err := b.Survey(); err != nil {
		return hardware.Process{}, false, err
	}
	all, err := b.Processes(uuid, uuid)
	at := slices.IndexFunc(all, func(p hardware.Process) bool { return p.PID == pid })
	if err != nil || at < 0 {
		return hardware.Process{}, false, err
	}
	return all[at], true, nil
}
