// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
)

// The probe of a device with an MPS daemon is run as the daemon's client, with its
// shared memory; of a device without one it is no client.
func TestProbeIsAClientWhereThereIsADaemon(t *testing.T) {
	self := filepath.Join(t.TempDir(), "self")
	script := "#!/bin/sh\necho \"[$*] pipe=$CUDA_MPS_PIPE_DIRECTORY log=$CUDA_MPS_LOG_DIRECTORY device=$CUDA_VISIBLE_DEVICES path=$LD_LIBRARY_PATH\"\nexit 1\n"
	if err := os.WriteFile(self, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	p := nvidia.Prober{Self: self, LibraryPath: "/driver", Exec: "mps-exec", Timeout: time.Minute}
	for name, tc := range map[string]struct {
		target hardware.ProbeTarget
		says   string
	}{
		"without": {hardware.ProbeTarget{UUID: "GPU-1"}, "[cuda-probe] pipe=/nonexistent log= device=GPU-1 path=/driver"},
		"with": {hardware.ProbeTarget{UUID: "GPU-1", PipeDir: "/pipe", LogDir: "/log", ShmDir: "/shm"},
			"[mps-exec /shm /dev/shm -- " + self + " cuda-probe] pipe=/pipe log=/log device=GPU-1 path=/driver"},
	} {
		if err := p.Probe(tc.target); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
}

// A hook that is called wrongly fails, and so does the start of the container.
func TestHookThatIsCalledWronglyFails(t *testing.T) {
	if err := nvidia.Hook([]string{nvidia.HookCommand, "create-symlinks", "--no-such-option"}); err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("got %v", err)
	}
}
