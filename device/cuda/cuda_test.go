// SPDX-License-Identifier: MPL-2.0

package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == ProbeCommand {
		if err := Check(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// On a machine with a GPU this is a real probe; on one without, it shows that
// the lack of a driver is an error and nothing worse.
func TestProbe(t *testing.T) {
	err := Probe("/proc/self/exe", Target{}, time.Minute)
	if _, openErr := Open(0); errors.Is(openErr, ErrUnavailable) {
		if err == nil || !strings.Contains(err.Error(), "CUDA is not available") {
			t.Errorf("without CUDA: %v", err)
		}
		return
	}
	t.Logf("with CUDA: %v", err)
}

func TestProbeDoesNotWaitForever(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hang")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Probe(path, Target{UUID: "GPU-1"}, 100*time.Millisecond); err == nil || !strings.Contains(err.Error(), "does not come back") {
		t.Errorf("got %v", err)
	}
}

func TestExpected(t *testing.T) {
	if got := expected(2, 3); got != ((2*2+3)*(2*2+3)+3)*((2*2+3)*(2*2+3)+3)+3 {
		t.Errorf("got %d", got)
	}
}

// A probe under MPS is a client with small limits, and has the driver's path.
func TestProbeIsASmallClientOfMPS(t *testing.T) {
	for name, tc := range map[string]struct {
		target Target
		want   []string
	}{
		"without": {Target{UUID: "GPU-1"}, []string{"CUDA_MPS_PIPE_DIRECTORY=/nonexistent", "CUDA_VISIBLE_DEVICES=GPU-1"}},
		"under MPS": {Target{UUID: "GPU-1", PipeDir: "/p", LogDir: "/l", LibraryPath: "/opt/driver"}, []string{"CUDA_MPS_PIPE_DIRECTORY=/p", "CUDA_MPS_LOG_DIRECTORY=/l",
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=512M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=5", "LD_LIBRARY_PATH=/opt/driver"}},
	} {
		got := tc.target.environment()
		for _, want := range tc.want {
			if !slices.Contains(got, want) {
				t.Errorf("%s: %q is not in %q", name, want, got)
			}
		}
	}
	// What is put before the program is what runs.
	path := filepath.Join(t.TempDir(), "before")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho \"$@\" && exit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Probe("/self", Target{Before: []string{path, "mps-exec", "/shm"}}, time.Minute); err == nil || !strings.Contains(err.Error(), "mps-exec /shm /self cuda-probe") {
		t.Errorf("got %v", err)
	}
}

func TestAFullGPUIsAlive(t *testing.T) {
	for code, want := range map[int]bool{OutOfMemory: true, Unavailable: true, 719: false, 802: false} {
		if got := alive(fmt.Errorf("in between: %w", &Error{Call: "cuMemAlloc_v2", Code: code})); got != want {
			t.Errorf("code %d: alive %v", code, got)
		}
	}
	if alive(errors.New("thread 3 computed nonsense")) {
		t.Error("a wrong result is alive")
	}
}
