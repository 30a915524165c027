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
	if got := fmt.Sprint(a.Processes); got != "[{1 running} {4 locked}]" || a.Failure != gpu.FailureCUDA || !strings.Contains(a.Message, "look at process 3") {
		t.Errorf("the answer is %+v", a)
	}
}
