// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/checkpoint"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	contract "github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// CUDA is the part of a simulated CUDA driver that suspends processes: those which
// control.json has on GPUs. Where each is stands in cuda.json, for every program that
// asks. Of a process that is checkpointed the GPU shows nothing and keeps no memory.
//
// It has the hazards of the original. Calls hang that a GPU's Hang names, before they
// did anything, or after it where the name ends in "+"; they fail with the codes of
// Errors. Processes that a killed program had locked stay locked. A restore without room loses
// the process. Saved memory counts against the memory of the process's control group:
// without room there the process is killed, as the kernel would.
type CUDA struct{ machine *Machine }

// CUDA is the driver of the machine.
func (m *Machine) CUDA() CUDA { return CUDA{m} }

var _ checkpoint.CUDA = CUDA{}

const (
	cudaFile = "cuda.json"
	// checkpointBranch is the first with these calls.
	checkpointBranch = 570
	// The codes of Errors that mean something.
	cudaNotReady     = 600
	cudaNotSupported = 801
)

// ReadProcessStates reads where the processes of a simulated machine are; those that
// were never suspended are not in it.
func ReadProcessStates(dir string) (map[int]contract.CheckpointState, error) {
	states := map[int]contract.CheckpointState{}
	text, err := os.ReadFile(filepath.Join(dir, cudaFile))
	if errors.Is(err, fs.ErrNotExist) {
		return states, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read simulated processes: %w", err)
	}
	return states, json.Unmarshal(text, &states)
}

// away are the processes that hold nothing of any GPU.
func (m *Machine) away() map[int]bool {
	away := map[int]bool{}
	states, err := ReadProcessStates(m.control.dir)
	if err != nil {
		m.control.report(err)
	}
	for pid, state := range states {
		away[pid] = state == contract.ProcessCheckpointed || state == contract.ProcessFailed
	}
	return away
}

// present are the processes that hold memory of the GPU.
func (g *gpu) present() []Process {
	away := g.machine.away()
	return slices.DeleteFunc(slices.Clone(g.condition().Processes), func(p Process) bool { return away[int(p.PID)] })
}

// State is where a process is.
func (c CUDA) State(pid int) (state contract.CheckpointState, err error) {
	err = c.call("cuCheckpointProcessGetState", pid, func(now contract.CheckpointState, _ []*gpu) (contract.CheckpointState, error) {
		state = now
		return now, nil
	})
	return state, err
}

// Lock makes a process wait in its next call of CUDA.
func (c CUDA) Lock(pid int, _ time.Duration) error {
	return c.call("cuCheckpointProcessLock", pid, func(now contract.CheckpointState, _ []*gpu) (contract.CheckpointState, error) {
		return moved(now, contract.ProcessRunning, contract.ProcessLocked)
	})
}

// Checkpoint takes a locked process off its GPUs.
func (c CUDA) Checkpoint(pid int) error {
	return c.call("cuCheckpointProcessCheckpoint", pid, func(now contract.CheckpointState, on []*gpu) (contract.CheckpointState, error) {
		next, err := moved(now, contract.ProcessLocked, contract.ProcessCheckpointed)
		if err == nil && c.machine.hostRoom(pid) < memoryOf(pid, on)<<20 {
			return now, errors.Join(errors.New("the process was killed: no memory in its control group"), syscall.Kill(pid, syscall.SIGKILL))
		}
		return next, err
	})
}

// Restore puts a process back on its GPUs, or loses it.
func (c CUDA) Restore(pid int) error {
	return c.call("cuCheckpointProcessRestore", pid, func(now contract.CheckpointState, on []*gpu) (contract.CheckpointState, error) {
		next, err := moved(now, contract.ProcessCheckpointed, contract.ProcessLocked)
		for _, g := range on {
			if need := memoryOf(pid, []*gpu{g}); err == nil && g.reservedMiB()+g.usedMiB("")+need > g.kind.MemoryMB {
				return contract.ProcessFailed, fmt.Errorf("CUDA_ERROR_OUT_OF_MEMORY (2): GPU %s has no %d MiB", g.uuid, need)
			}
		}
		return next, err
	})
}

// Unlock lets a process go on.
func (c CUDA) Unlock(pid int) error {
	return c.call("cuCheckpointProcessUnlock", pid, func(now contract.CheckpointState, _ []*gpu) (contract.CheckpointState, error) {
		return moved(now, contract.ProcessLocked, contract.ProcessRunning)
	})
}

func moved(now, from, to contract.CheckpointState) (contract.CheckpointState, error) {
	if now != from {
		return now, fmt.Errorf("CUDA_ERROR_ILLEGAL_STATE (401): the process is %s", now)
	}
	return to, nil
}

// call does one thing to a process while no other program does.
func (c CUDA) call(name string, pid int, do func(contract.CheckpointState, []*gpu) (contract.CheckpointState, error)) error {
	m := c.machine
	var branch int
	if _, err := fmt.Sscanf(m.library, "%d.", &branch); err == nil && branch < checkpointBranch {
		return fmt.Errorf("%w: the library of branch %d has no %s", checkpoint.ErrUnsupported, branch, name)
	}
	on := m.gpusOf(pid)
	if len(on) == 0 {
		return fmt.Errorf("%w: CUDA_ERROR_INVALID_VALUE (1)", checkpoint.ErrNoCUDA)
	}
	for _, g := range on {
		for g.hangs(name) {
			time.Sleep(m.nap)
		}
		if err := cudaError(name, g.condition().Errors[name]); err != nil {
			return err
		}
	}
	err := m.changeState(pid, func(now contract.CheckpointState) (contract.CheckpointState, error) { return do(now, on) })
	for _, g := range on {
		for g.hangs(name + "+") {
			time.Sleep(m.nap)
		}
	}
	return err
}

func cudaError(call string, code int) error {
	switch code {
	case 0:
		return nil
	case cudaNotReady:
		return fmt.Errorf("%w: %s: CUDA_ERROR_NOT_READY (%d)", checkpoint.ErrBusy, call, code)
	case cudaNotSupported:
		return fmt.Errorf("%w: %s: CUDA_ERROR_NOT_SUPPORTED (%d)", checkpoint.ErrUnsupported, call, code)
	}
	return fmt.Errorf("%s: CUDA error %d", call, code)
}

// gpusOf are the GPUs on which control.json has a process.
func (m *Machine) gpusOf(pid int) []*gpu {
	var on []*gpu
	for _, g := range m.gpus {
		if slices.ContainsFunc(g.condition().Processes, func(p Process) bool { return int(p.PID) == pid }) {
			on = append(on, g)
		}
	}
	return on
}

// memoryOf is what a process has on GPUs, or had there, in MiB.
func memoryOf(pid int, on []*gpu) uint64 {
	sum := uint64(0)
	for _, g := range on {
		for _, p := range g.condition().Processes {
			if int(p.PID) == pid {
				sum += p.MemoryMiB
			}
		}
	}
	return sum
}

// changeState changes where a process is, under a lock that ends with its holder.
func (m *Machine) changeState(pid int, change func(contract.CheckpointState) (contract.CheckpointState, error)) error {
	dir, err := os.Open(m.control.dir)
	if err != nil {
		return fmt.Errorf("lock simulated processes: %w", err)
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock simulated processes: %w", err)
	}
	states, err := ReadProcessStates(m.control.dir)
	if err != nil {
		return err
	}
	now, found := states[pid]
	if !found {
		now = contract.ProcessRunning
	}
	next, problem := change(now)
	if next == now {
		return problem
	}
	states[pid] = next
	text, err := json.Marshal(states)
	if err != nil {
		return err
	}
	return errors.Join(problem, statedir.WriteFile(filepath.Join(m.control.dir, cudaFile), text, 0o600))
}

// unlimited is the room in a control group that has no limit.
const unlimited = 1 << 62

// cgroupRoom is how much memory a process's control group has left, in bytes.
func cgroupRoom(pid int) uint64 {
	groups, err := cgroup.Of(pid)
	if err != nil {
		return unlimited
	}
	for _, g := range groups {
		switch {
		case g.Unified():
			return roomIn(filepath.Join("/sys/fs/cgroup", g.Path), "memory.max", "memory.current")
		case g.Has("memory"):
			return roomIn(filepath.Join("/sys/fs/cgroup/memory", g.Path), "memory.limit_in_bytes", "memory.usage_in_bytes")
		}
	}
	return unlimited
}

func roomIn(dir, limitFile, usageFile string) uint64 {
	read := func(name string) (uint64, error) {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return 0, err
		}
		return strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	}
	limit, err := read(limitFile)
	used, problem := read(usageFile)
	if err != nil || problem != nil || limit >= unlimited {
		return unlimited // "max", or none there
	}
	return limit - min(used, limit)
}
