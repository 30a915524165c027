package cuda

import (
	"errors"
	"testing"

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
