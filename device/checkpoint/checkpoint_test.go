// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// states are what CUDA says of processes; of one that is not there it says nothing.
type states map[int]gpu.CheckpointState

func (s states) State(pid int) (gpu.CheckpointState, error) {
	switch {
	case s[pid] == "none":
		return "", ErrNoCUDA
	case s[pid] == "":
		return "", errors.New("operating system (304)")
	}
	return s[pid], nil
}
func (s states) Lock(int, time.Duration) error { return nil }
func (s states) Checkpoint(int) error          { return nil }
func (s states) Restore(int) error             { return nil }
func (s states) Unlock(int) error              { return nil }

// A process of which CUDA says nothing hides no other.
func TestOneProcessThatDoesNotTellHidesNoOther(t *testing.T) {
	c := states{1: gpu.ProcessRunning, 2: "none", 4: gpu.ProcessLocked}
	a, err := Answer(c, nil, gpu.CheckpointRequest{Action: gpu.CheckpointLook, PIDs: []int{1, 2, 3, 4}})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(a.Processes, a.Unread); got != "[{1 running} {4 locked}] [3]" || a.Failure != gpu.FailureCUDA || !strings.Contains(a.Message, "look at process 3") {
		t.Errorf("the answer is %+v", a)
	}
}

// locking is a CUDA whose processes change their states, and some of them do not tell theirs.
type locking struct{ states }

func (l locking) Unlock(pid int) error { l.states[pid] = gpu.ProcessRunning; return nil }

// Locked processes go on beside one that does not tell its state, and a neighbor's such process
// is named as the one that keeps a task from coming back.
func TestAProcessThatDoesNotTellHoldsNoOther(t *testing.T) {
	c := locking{states{1: gpu.ProcessLocked, 3: gpu.ProcessCheckpointed}}
	a, err := Answer(c, nil, gpu.CheckpointRequest{Action: gpu.CheckpointUnlock, PIDs: []int{1, 2}})
	if err != nil || fmt.Sprint(a.Processes, a.Unread) != "[{1 running}] [2]" {
		t.Errorf("unlocked: %+v, %v", a, err)
	}
	a, err = Answer(c, nil, gpu.CheckpointRequest{Action: gpu.CheckpointResume, PIDs: []int{3}, Beside: []int{1, 2}})
	if err != nil || fmt.Sprint(a.Stuck, a.Unread) != "[2] []" || !a.Any(gpu.ProcessCheckpointed) || !strings.Contains(a.Message, "hold the neighbors: lock process 2: look at process 2") {
		t.Errorf("it comes back: %+v, %v", a, err)
	}
}
