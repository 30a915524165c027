// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/base"
)

// inventoryVariable makes the test binary take an inventory and nothing else: the
// loader reads where libraries are when a process starts.
const inventoryVariable = "NOMAD_GPU_TEST_INVENTORY"

func TestMain(m *testing.M) {
	if os.Getenv(inventoryVariable) != "" {
		code, out, problems := run("inventory")
		_, _ = os.Stdout.WriteString(out)
		_, _ = os.Stderr.WriteString(problems)
		os.Exit(code)
	}
	if os.Getenv(base.Handshake.MagicCookieKey) != "" || os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// NVIDIA's library of every branch is loaded and asked, and says itself that there
// is no driver under it.
func TestInventoryRunsWithEveryDriversLibrary(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia/version"); err == nil {
		t.Skip("this machine has an NVIDIA driver, which the libraries of other branches refuse")
	}
	cache := os.Getenv("NOMAD_GPU_CACHE")
	if cache == "" {
		cache = "/var/cache/nomad-gpu"
	}
	for _, branch := range []string{"470", "535", "550", "555"} {
		t.Run(branch, func(t *testing.T) {
			dir := filepath.Join(cache, "nvidia", branch)
			if _, err := os.Stat(filepath.Join(dir, "libnvidia-ml.so.1")); err != nil {
				t.Skipf("NVIDIA's library of branch %s is not there; e2e/prepare tests fetches it from Debian where it can: %v", branch, err)
			}
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), inventoryVariable+"=1", "LD_LIBRARY_PATH="+dir)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "the NVIDIA driver is not loaded") {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
