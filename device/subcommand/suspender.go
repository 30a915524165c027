// SPDX-License-Identifier: MPL-2.0

package subcommand

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/device/checkpoint"
	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/cuda"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Checkpoint is the first argument with which the task driver runs the plugin's
// binary, as the device's state says, to suspend the processes of a task and to bring
// them back:
//
//	nomad-device-gpu checkpoint DRIVER <REQUEST >ANSWER
//
// DRIVER is a driverConfig. A CUDA call can hang: whoever runs it must bound its
// time, and kill it.
const Checkpoint = "checkpoint"

// Suspender is what the task driver runs to move the memory of tasks.
func Suspender(c *config.Config, bootID string) (gpu.Suspender, error) {
	command, err := commandLine(Checkpoint, c, bootID)
	s := gpu.Suspender{Command: command}
	if path := (nvidia.Driver{Root: c.Driver.Root, LibraryPaths: c.Driver.LibraryPaths}).LibraryPath(); path != "" && c.Simulation == nil {
		s.Env = []string{"LD_LIBRARY_PATH=" + path}
	}
	return s, err
}

// RunCheckpoint is that command; args are what comes after its name.
func RunCheckpoint(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("%s: want DRIVER, got %q", Checkpoint, args)
	}
	var c driverConfig
	if err := json.Unmarshal([]byte(args[0]), &c); err != nil {
		return fmt.Errorf("%s: read %q: %w", Checkpoint, args[0], err)
	}
	var request gpu.CheckpointRequest
	if err := json.NewDecoder(in).Decode(&request); err != nil {
		return fmt.Errorf("%s: read the request: %w", Checkpoint, err)
	}
	if request.Version != gpu.StateVersion {
		return fmt.Errorf("%s: the request has version %d, and this is %d: plugin and driver are of different releases", Checkpoint, request.Version, gpu.StateVersion)
	}
	calls, memory, err := c.checkpoints()
	if err != nil {
		return fmt.Errorf("%s: %w", Checkpoint, err)
	}
	held, err := holdLock(request.Lock)
	if err != nil {
		return fmt.Errorf("%s: %w", Checkpoint, err)
	}
	defer held.Close()
	answer, err := checkpoint.Answer(calls, memory, request)
	if err != nil {
		return fmt.Errorf("%s: %w", Checkpoint, err)
	}
	return json.NewEncoder(out).Encode(answer)
}

// holdLock sees to it that this is the only such program at work on the device. The
// kernel lets go of the lock when the program has ended, however it did.
func holdLock(path string) (io.Closer, error) {
	if path == "" {
		return io.NopCloser(nil), nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another one is still at work on the device: %w", err), file.Close())
	}
	return file, nil
}

// checkpoints are the calls of CUDA, real or simulated, and what tells of free memory.
func (c driverConfig) checkpoints() (checkpoint.CUDA, checkpoint.Memory, error) {
	backend, err := c.backend()
	if err != nil {
		return nil, nil, err
	}
	if c.Simulation == nil {
		calls, err := cuda.OpenCheckpoints()
		return calls, deviceMemory{backend}, err
	}
	machine, err := c.simulated()
	if err != nil {
		return nil, nil, err
	}
	return machine.CUDA(), deviceMemory{backend}, nil
}

// deviceMemory asks NVML.
type deviceMemory struct{ backend *nvidia.Backend }

func (m deviceMemory) Free(uuid string) (int64, error) {
	r, err := m.backend.Reading(uuid, uuid)
	if err == nil && (r.MemoryTotalMiB == hardware.Absent || r.MemoryUsedMiB == hardware.Absent) {
		err = errors.New("the device does not tell how much of its memory is free")
	}
	return r.MemoryTotalMiB - r.MemoryUsedMiB, err
}

func (m deviceMemory) Held(uuid string, pids []int) (int64, error) {
	processes, err := m.backend.Processes(uuid, uuid)
	held := int64(0)
	for _, p := range processes {
		if !slices.Contains(pids, p.PID) {
			continue
		}
		if p.MemoryMiB == hardware.Absent {
			return 0, fmt.Errorf("the device does not tell how much of its memory process %d holds", p.PID)
		}
		held += p.MemoryMiB
	}
	return held, err
}
