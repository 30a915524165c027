// SPDX-License-Identifier: MPL-2.0

// Package cross runs what "make cross" builds for arm64 under QEMU's user emulation:
// the programs start, and the device plugin finds the same machine as the one built
// for this processor. It needs no arm64 machine and proves no driver of NVIDIA's.
package cross

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var root, _ = filepath.Abs("../..")

// arm64 runs a program of bin/arm64 and returns what it prints.
func arm64(t *testing.T, program string, args ...string) string {
	t.Helper()
	path := filepath.Join(root, "bin", "arm64", program)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not built; make cross builds it", path)
	}
	qemu, err := exec.LookPath("qemu-aarch64")
	if err != nil {
		t.Skip("qemu-aarch64 is not there; e2e/prepare cross installs it")
	}
	// The device plugin loads C libraries, those of the cross compiler.
	return output(t, exec.Command(qemu, append([]string{"-L", "/usr/aarch64-linux-gnu", path}, args...)...))
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

func TestProgramsSayWhatTheyAre(t *testing.T) {
	for _, program := range []string{"nomad-device-gpu", "nomad-driver-containerd", "nomad-gpu-scheduler"} {
		if said := arm64(t, program, "version"); !strings.HasPrefix(said, program+" ") {
			t.Errorf("%s version says %q", program, said)
		}
	}
	if said := arm64(t, "nomad-driver-containerd", "help"); !strings.Contains(said, "Usage: nomad-driver-containerd") {
		t.Errorf("nomad-driver-containerd help says %q", said)
	}
}

// The inventory is what the plugin would fingerprint.
func TestTheDevicePluginFindsTheSameMachine(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "gpu.hcl")
	text := `plugin "nomad-device-gpu" {
  config {
    mode = "slice"
    simulation {
      topology = "` + filepath.Join(root, "e2e", "topology", "mixed.hcl") + `"
      dir      = "` + dir + `"
    }
  }
}
`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	there := arm64(t, "nomad-device-gpu", "inventory", config)
	here := output(t, exec.Command(filepath.Join(root, "bin", "nomad-device-gpu"), "inventory", config))
	if there != here || !strings.Contains(here, "nvidia/") {
		t.Errorf("built for arm64 it finds\n%s\nbuilt for this processor\n%s", there, here)
	}
}
