// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// seatHost is what the seats of one device act on: the tasks of this driver, their
// control groups, and the device plugin's program.
type seatHost struct {
	driver *Driver
	uuid   string
}

// abandonAfter is how long a program that was killed may take to end. One that hangs in
// the NVIDIA driver may take for ever: it keeps its lock, so that no other begins.
const abandonAfter = 2 * time.Second

// Checkpoint runs the device plugin's program with a request.
func (h *seatHost) Checkpoint(ctx context.Context, r gpu.CheckpointRequest) (gpu.CheckpointAnswer, error) {
	var answer gpu.CheckpointAnswer
	n, err := h.driver.configured()
	if err != nil {
		return answer, err
	}
	state, err := n.state.GPU(h.uuid)
	if err != nil {
		return answer, err
	}
	if state.Seats == nil || len(state.Seats.Suspender.Command) == 0 {
		return answer, errors.New("the device plugin names no program for that")
	}
	r.Lock = n.state.SeatLock(h.uuid)
	request, _ := json.Marshal(r) // words and numbers
	out, err := runSuspender(ctx, state.Seats.Suspender, request)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return answer, fmt.Errorf("read the answer of %s: %w", state.Seats.Suspender.Command[0], err)
	}
	return answer, nil
}

// runSuspender runs the program until it has answered or ctx ends. It dies with the
// driver: its action is then no longer wanted.
func runSuspender(ctx context.Context, s gpu.Suspender, request []byte) ([]byte, error) {
	cmd := exec.Command(s.Command[0], s.Command[1:]...)
	cmd.Env = append(os.Environ(), s.Env...)
	var out, problems bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(request), &out, &problems
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the kernel sends the signal when the thread ends
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	select {
	case err := <-ended:
		if err != nil {
			return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(problems.String()))
		}
		return out.Bytes(), nil
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill()
	select {
	case <-ended:
	case <-time.After(abandonAfter):
	}
	return nil, fmt.Errorf("%s does not answer: %w", s.Command[0], ctx.Err())
}

func (h *seatHost) lease(id string) (gpu.Lease, error) {
	n, err := h.driver.configured()
	if err != nil {
		return gpu.Lease{}, err
	}
	return n.state.Lease(id)
}

// Processes are those in the control group of a task.
func (h *seatHost) Processes(leaseID string) ([]int, error) {
	l, err := h.lease(leaseID)
	if err != nil {
		return nil, err
	}
	dirs, err := cgroups.Tree(cgroups.Of(l), cgroups.Unified())
	if err != nil {
		return nil, err
	}
	return cgroups.Processes(dirs)
}

// leaveTime is how long a task may take to leave its GPU before it is killed.
const leaveTime = 20 * time.Second

// leaveGPU takes a task off the GPU that is to be killed and has been on the host before:
// NVIDIA's driver was seen to hang where a process is killed that was brought back.
func (d *Driver) leaveGPU(t *task) {
	for _, holding := range t.record.Lease.Holdings {
		if holding.SeatMiB == 0 {
			continue
		}
		device := d.seats.known(holding.UUID)
		if device == nil || !device.mu.TryLock() {
			continue // it, or another, is being moved
		}
		h := &seatHost{driver: d, uuid: holding.UUID}
		if device.controller != nil {
			for _, s := range device.controller.Seats() {
				if s.LeaseID == t.record.Lease.ID && s.Resumed && s.State == gpu.SeatResident {
					h.leave(t)
				}
			}
		}
		device.mu.Unlock()
	}
}

// leave moves what CUDA can move: a process whose state it does not tell keeps no other there.
func (h *seatHost) leave(t *task) {
	ctx, cancel := context.WithTimeout(h.driver.ctx, leaveTime)
	defer cancel()
	r := gpu.CheckpointRequest{Version: gpu.StateVersion, Action: gpu.CheckpointSuspend, UUID: h.uuid, LockMS: time.Second.Milliseconds()}
	var a gpu.CheckpointAnswer
	var err error
	if r.PIDs, err = h.Processes(t.record.Lease.ID); err == nil {
		a, err = h.Checkpoint(ctx, r)
	}
	if err == nil && len(a.Unread) > 0 {
		r.PIDs = slices.DeleteFunc(r.PIDs, func(pid int) bool { return slices.Contains(a.Unread, pid) })
		a, err = h.Checkpoint(ctx, r)
	}
	if err == nil && a.Failure != "" {
		err = errors.New(a.Message)
	}
	if err != nil {
		t.logger.Warn("a task that was suspended before is killed on its GPU", "error", err)
	}
}
