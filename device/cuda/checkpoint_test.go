// SPDX-License-Identifier: MPL-2.0

package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/device/checkpoint"
)

// Without a driver, or with one older than branch 570, it is said so; with one, a process
// that does not use CUDA is told from one that does.
func TestCheckpointsOfAProcessWithoutCUDA(t *testing.T) {
	c, err := OpenCheckpoints()
	switch {
	case errors.Is(err, ErrUnavailable), errors.Is(err, checkpoint.ErrUnsupported):
		return
	case err != nil:
		t.Fatal(err)
	}
	if state, err := c.State(1); !errors.Is(err, checkpoint.ErrNoCUDA) {
		t.Errorf("process 1 is %q: %v", state, err)
	}
}

// Only a process that has the library in its memory is asked about, wherever it lies.
func TestProcessesWithoutTheLibraryAreNotAskedAbout(t *testing.T) {
	if loaded(os.Getpid()) || loaded(1<<30) {
		t.Fatal("a process without the library, or none at all, is to be asked about")
	}
	if _, err := (Checkpoints{}).State(os.Getpid()); !errors.Is(err, checkpoint.ErrNoCUDA) {
		t.Errorf("without the library: %v", err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "libcuda.so.580.159.04"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	mapped, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	if !loaded(os.Getpid()) {
		t.Error("a process with the library is not asked about")
	}
}

// What CUDA answers has a meaning for the driver.
func TestCodesOfCheckpoints(t *testing.T) {
	for code, want := range map[int]error{600: checkpoint.ErrBusy, 801: checkpoint.ErrUnsupported, 800: checkpoint.ErrUnsupported} {
		if err := checkpointError(&Error{Call: "cuCheckpointProcessLock", Code: code}); !errors.Is(err, want) {
			t.Errorf("%d is %v", code, err)
		}
	}
	if err := notCUDA(&Error{Call: "cuCheckpointProcessGetState", Code: 1}); !errors.Is(err, checkpoint.ErrNoCUDA) {
		t.Error(err)
	}
	if err := notCUDA(&Error{Call: "cuCheckpointProcessGetState", Code: 999}); errors.Is(err, checkpoint.ErrNoCUDA) {
		t.Error("any failure is a process without CUDA")
	}
}
