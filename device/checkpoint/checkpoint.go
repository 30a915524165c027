// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// CUDA is what the driver's library can do to a process, by the host's number of it.
type CUDA interface {
	// State is an ErrNoCUDA for a process that does not use CUDA, or has ended.
	State(pid int) (gpu.CheckpointState, error)
	Lock(pid int, timeout time.Duration) error
	Checkpoint(pid int) error
	Restore(pid int) error
	Unlock(pid int) error
}

// Memory tells of a device's memory, in MiB.
type Memory interface {
	Free(uuid string) (int64, error)
	// Held is what processes hold of the device.
	Held(uuid string, pids []int) (int64, error)
}

var (
	// ErrNoCUDA means that a process does not use CUDA.
	ErrNoCUDA = errors.New("the process does not use CUDA")
	// ErrUnsupported means that a process cannot be suspended as it is.
	ErrUnsupported = errors.New("CUDA cannot suspend the process: it uses managed memory, shares memory with other processes, or the driver is older than branch 570")
	// ErrBusy means that a process could not be locked in time.
	ErrBusy = errors.New("the process could not be locked in time")
	// errGrown means that there is more to move than may be.
	errGrown = errors.New("the processes hold more memory than may go to the host")
	// errNoRoom means that the device is too full.
	errNoRoom = errors.New("there is no room on the device")
)

// stuckError means that a process could not be locked.
type stuckError struct {
	pid int
	err error
}

func (e *stuckError) Error() string { return fmt.Sprintf("lock process %d: %v", e.pid, e.err) }
func (e *stuckError) Unwrap() error { return e.err }

// Answer does what a request asks for. An error of the request itself is returned;
// what CUDA does not do is told in the answer.
func Answer(c CUDA, m Memory, r gpu.CheckpointRequest) (gpu.CheckpointAnswer, error) {
	a := gpu.CheckpointAnswer{Version: gpu.StateVersion}
	w := work{cuda: c, memory: m, timeout: time.Duration(r.LockMS) * time.Millisecond}
	var err error
	switch r.Action {
	case gpu.CheckpointLook:
	case gpu.CheckpointSuspend:
		a.HeldMiB, err = w.suspend(r)
	case gpu.CheckpointResume:
		a.FreeMiB, err = w.resume(r)
	case gpu.CheckpointUnlock:
		err = w.unlock(r.PIDs)
	default:
		return a, fmt.Errorf("action: %q is not valid (%s, %s, %s, %s)", r.Action, gpu.CheckpointLook, gpu.CheckpointSuspend, gpu.CheckpointResume, gpu.CheckpointUnlock)
	}
	if err != nil {
		a.Failure, a.Message = failureOf(err), err.Error()
	}
	if stuck, is := errors.AsType[*stuckError](err); is {
		a.Stuck = []int{stuck.pid}
	}
	a.Processes, a.Unread, err = w.look(r.PIDs)
	if err != nil && a.Failure == "" {
		a.Failure, a.Message = failureOf(err), err.Error()
	}
	return a, nil
}

func failureOf(err error) gpu.CheckpointFailure {
	switch {
	case errors.Is(err, errNoRoom):
		return gpu.FailureNoRoom
	case errors.Is(err, errGrown):
		return gpu.FailureGrown
	case errors.Is(err, ErrUnsupported):
		return gpu.FailureUnsupported
	case errors.Is(err, ErrBusy):
		return gpu.FailureBusy
	}
	return gpu.FailureCUDA
}

// work is one action under way.
type work struct {
	cuda    CUDA
	memory  Memory
	timeout time.Duration
}

// look finds the processes that use CUDA, and their states: of all that tell, also where
// one does not. CUDA does not tell the state of the unread ones.
func (w work) look(pids []int) (found []gpu.CheckpointProcess, unread []int, failed error) {
	for _, pid := range pids {
		state, err := w.cuda.State(pid)
		if errors.Is(err, ErrNoCUDA) {
			continue
		}
		if err != nil {
			unread, failed = append(unread, pid), errors.Join(failed, fmt.Errorf("look at process %d: %w", pid, err))
			continue
		}
		found = append(found, gpu.CheckpointProcess{PID: pid, State: state})
	}
	return found, unread, failed
}

// in returns the processes that are in one of the states.
func in(all []gpu.CheckpointProcess, states ...gpu.CheckpointState) []int {
	var pids []int
	for _, p := range all {
		for _, state := range states {
			if p.State == state {
				pids = append(pids, p.PID)
			}
		}
	}
	return pids
}

// suspend locks the running processes, and moves the locked ones. Where that cannot
// begin and none of the task is on the host yet, all go on; where a process cannot be
// moved, those before it stay on the host: the caller brings them back when there is
// room.
func (w work) suspend(r gpu.CheckpointRequest) (heldMiB int64, err error) {
	all, _, err := w.look(r.PIDs)
	if err != nil {
		return 0, err
	}
	heldMiB, err = w.hold(r, all)
	if err != nil {
		if len(in(all, gpu.ProcessCheckpointed)) == 0 {
			err = errors.Join(err, w.unlock(r.PIDs))
		}
		return heldMiB, err
	}
	return heldMiB, w.each("checkpoint", in(all, gpu.ProcessRunning, gpu.ProcessLocked), w.cuda.Checkpoint)
}

// hold locks processes, so that they take no more memory, and checks whether their
// memory may go to the host.
func (w work) hold(r gpu.CheckpointRequest, all []gpu.CheckpointProcess) (heldMiB int64, err error) {
	if err := w.lock(in(all, gpu.ProcessRunning)); err != nil {
		return 0, err
	}
	heldMiB, err = w.memory.Held(r.UUID, in(all, gpu.ProcessRunning, gpu.ProcessLocked))
	if err == nil && r.MostMiB > 0 && heldMiB > r.MostMiB {
		err = fmt.Errorf("%w: %d MiB, and %d MiB may", errGrown, heldMiB, r.MostMiB)
	}
	return heldMiB, err
}

// lock locks all processes or none.
func (w work) lock(pids []int) error {
	for n, pid := range pids {
		if err := w.cuda.Lock(pid, w.timeout); err != nil && !errors.Is(err, ErrNoCUDA) {
			return errors.Join(&stuckError{pid, err}, w.release(pids[:n]))
		}
	}
	return nil
}

// resume brings all of a task back, beside neighbors that stand still meanwhile.
func (w work) resume(r gpu.CheckpointRequest) (freeMiB int64, err error) {
	all, _, err := w.look(r.PIDs)
	if err != nil {
		return 0, err
	}
	away := in(all, gpu.ProcessCheckpointed)
	if len(away) == 0 {
		return 0, w.unlock(r.PIDs)
	}
	neighbors, unread, err := w.look(r.Beside)
	if err != nil {
		return 0, fmt.Errorf("hold the neighbors: %w", &stuckError{unread[0], err})
	}
	beside := in(neighbors, gpu.ProcessRunning)
	if err := w.lock(beside); err != nil {
		return 0, fmt.Errorf("hold the neighbors: %w", err)
	}
	defer func() { err = errors.Join(err, w.release(beside)) }()
	if freeMiB, err = w.memory.Free(r.UUID); err != nil {
		return 0, err
	}
	if freeMiB < r.RoomMiB {
		return freeMiB, fmt.Errorf("%w: %d MiB are free, %d MiB are needed", errNoRoom, freeMiB, r.RoomMiB)
	}
	if err := w.each("restore", away, w.cuda.Restore); err != nil {
		return freeMiB, err
	}
	return freeMiB, w.unlock(r.PIDs)
}

// unlock lets processes go on, where all of the task that tell have their memory.
func (w work) unlock(pids []int) error {
	all, _, err := w.look(pids)
	if away := in(all, gpu.ProcessCheckpointed, gpu.ProcessFailed); len(away) > 0 {
		return errors.Join(err, fmt.Errorf("processes %v do not have their memory", away))
	}
	return errors.Join(err, w.release(in(all, gpu.ProcessLocked)))
}

// each does one thing to all processes and stops where it fails. A process that has
// ended meanwhile needs nothing.
func (w work) each(name string, pids []int, do func(int) error) error {
	for _, pid := range pids {
		if err := do(pid); err != nil && !errors.Is(err, ErrNoCUDA) {
			return fmt.Errorf("%s process %d: %w", name, pid, err)
		}
	}
	return nil
}

// release unlocks all processes: one that cannot be leaves no other locked.
func (w work) release(pids []int) error {
	var failed error
	for _, pid := range pids {
		failed = errors.Join(failed, w.each("unlock", []int{pid}, w.cuda.Unlock))
	}
	return failed
}
