// SPDX-License-Identifier: MPL-2.0

package cuda

/*
#include <stdint.h>
#include <string.h>

// What cuda.h has of process checkpoints, from CUDA 12.8 on. Each block of arguments
// is 64 bytes, or 72; unset bytes must be zero.
typedef struct { unsigned int timeout_ms; unsigned int reserved0; uint64_t reserved[8]; } checkpoint_args;

static int process_state(void *f, int pid, int *state) { return ((int (*)(int, int *))f)(pid, state); }
static int process_step(void *f, int pid, unsigned int timeout_ms) {
	checkpoint_args args;
	memset(&args, 0, sizeof args);
	args.timeout_ms = timeout_ms;
	return ((int (*)(int, void *))f)(pid, &args);
}
*/
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/nomad-gpu/nomad-gpu/device/checkpoint"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// The codes of CUDA that mean something for checkpoints.
const (
	codeInvalidValue   = 1
	codeNotInitialized = 3
	codeInvalidContext = 201
	codeNotReady       = 600
	codeNotPermitted   = 800
	codeNotSupported   = 801
)

// checkpointCalls are the functions that a library has from branch 570 on.
var checkpointCalls = []string{"cuCheckpointProcessGetState", "cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"}

// processStates are CUDA's numbers of the states. In 4 and 5 a process is on its way.
var processStates = map[C.int]gpu.CheckpointState{
	0: gpu.ProcessRunning, 1: gpu.ProcessLocked, 2: gpu.ProcessCheckpointed, 3: gpu.ProcessFailed, 4: gpu.ProcessLocked, 5: gpu.ProcessCheckpointed,
}

// Checkpoints are the calls by which processes leave GPUs and come back. They can
// hang: use them in a process that can be killed.
type Checkpoints struct{}

var _ checkpoint.CUDA = Checkpoints{}

// OpenCheckpoints loads the library. It fails where that is older than branch 570.
func OpenCheckpoints() (Checkpoints, error) {
	if err := loadLibrary(); err != nil {
		return Checkpoints{}, err
	}
	for _, name := range checkpointCalls {
		if _, err := symbol(name); err != nil {
			return Checkpoints{}, fmt.Errorf("%w: %w", checkpoint.ErrUnsupported, err)
		}
	}
	return Checkpoints{}, initialize()
}

// stateTime is how long CUDA may take to say where a process is. It can hang on one that
// uses NCCL, say, and the others of the task must not wait for that.
const stateTime = 5 * time.Second

// State is where a process is. One that has not loaded the library uses no CUDA: it is not
// asked about, since of some CUDA knows nothing but an error of the operating system.
func (Checkpoints) State(pid int) (gpu.CheckpointState, error) {
	if !loaded(pid) {
		return "", fmt.Errorf("%w: it has not loaded libcuda", checkpoint.ErrNoCUDA)
	}
	type answer struct {
		number C.int
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		var a answer
		a.err = with("cuCheckpointProcessGetState", func(f unsafe.Pointer) C.int { return C.process_state(f, C.int(pid), &a.number) })
		answered <- a
	}()
	var number C.int
	select {
	case a := <-answered:
		if a.err != nil && !loaded(pid) { // it has ended meanwhile
			return "", fmt.Errorf("%w: %w", checkpoint.ErrNoCUDA, a.err)
		}
		if a.err != nil {
			return "", notCUDA(a.err)
		}
		number = a.number
	case <-time.After(stateTime):
		return "", fmt.Errorf("%w: CUDA does not say where process %d is", checkpoint.ErrBusy, pid)
	}
	state, known := processStates[number]
	if !known {
		return "", fmt.Errorf("process %d is in state %d of CUDA, which is not known", pid, number)
	}
	return state, nil
}

// loaded reports whether a process lives and has CUDA's library in its memory, wherever its
// container keeps that.
func loaded(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return err == nil && bytes.Contains(text, []byte("/libcuda.so"))
}

// Lock makes a process wait in its next CUDA call.
func (Checkpoints) Lock(pid int, timeout time.Duration) error {
	return step("cuCheckpointProcessLock", pid, timeout)
}

// Checkpoint moves the GPU memory of a locked process to the host.
func (Checkpoints) Checkpoint(pid int) error { return step("cuCheckpointProcessCheckpoint", pid, 0) }

// Restore brings it back; the process is then locked. Without room it is lost.
func (Checkpoints) Restore(pid int) error { return step("cuCheckpointProcessRestore", pid, 0) }

// Unlock lets a locked process go on.
func (Checkpoints) Unlock(pid int) error { return step("cuCheckpointProcessUnlock", pid, 0) }

func step(call string, pid int, timeout time.Duration) error {
	return checkpointError(notCUDA(with(call, func(f unsafe.Pointer) C.int {
		return C.process_step(f, C.int(pid), C.uint(timeout.Milliseconds()))
	})))
}

// checkpointError adds to an error of CUDA its meaning for the caller.
func checkpointError(err error) error {
	var refused *Error
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case codeNotReady:
		return fmt.Errorf("%w: %w", checkpoint.ErrBusy, err)
	case codeNotSupported, codeNotPermitted:
		return fmt.Errorf("%w: %w", checkpoint.ErrUnsupported, err)
	}
	return err
}

// notCUDA: asked for the state of a process without CUDA, the driver answers as if it
// had been asked nonsense.
func notCUDA(err error) error {
	var refused *Error
	if errors.As(err, &refused) && (refused.Code == codeInvalidValue || refused.Code == codeNotInitialized || refused.Code == codeInvalidContext) {
		return fmt.Errorf("%w: %w", checkpoint.ErrNoCUDA, err)
	}
	return err
}
