package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// seatHost is what the seats of one device act on: the tasks of this driver, their
// control groups, and the device plugin's program.
type seatHost struct {
	driver *Driver
	uuid   string
}

var _ seats.Host = (*seatHost)(nil)

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
// driver: what it was about to do is then no longer wanted.
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

// noMemoryLimit is above what any machine has: cgroup v1 writes such a number where
// there is no limit.
const noMemoryLimit = 1 << 60

// memoryFiles are the limits of memory in a control group, that of memory alone first,
// and with swap after it. Usage is what counts against a limit for which the kernel would
// kill processes: cgroup v1 refuses such a limit itself, and has none here.
func memoryFiles(path string) (limits []string, usage string, err error) {
	dirs, err := cgroups.Dirs(path, cgroups.Unified())
	for _, dir := range dirs {
		if cgroups.Unified() {
			return []string{filepath.Join(dir, "memory.max")}, filepath.Join(dir, "memory.current"), nil
		}
		file, both := filepath.Join(dir, "memory.limit_in_bytes"), filepath.Join(dir, "memory.memsw.limit_in_bytes")
		if _, err := readBytes(file); err != nil {
			continue // another hierarchy
		}
		limits = []string{file}
		if _, err := readBytes(both); err == nil {
			limits = append(limits, both)
		}
	}
	return limits, usage, err
}

// readBytes reads a number of bytes from a file of a control group.
func readBytes(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	if word := strings.TrimSpace(string(text)); word != "max" {
		return strconv.ParseInt(word, 10, 64)
	}
	return noMemoryLimit, nil
}

// MemoryLimit is that of a task's control group, 0 without one.
func (h *seatHost) MemoryLimit(leaseID string) (int64, error) {
	l, err := h.lease(leaseID)
	if err != nil {
		return 0, err
	}
	limits, _, err := memoryFiles(cgroups.Of(l))
	if len(limits) == 0 {
		return 0, err
	}
	limit, err := readBytes(limits[0])
	if errors.Is(err, fs.ErrNotExist) || limit >= noMemoryLimit {
		return 0, nil
	}
	return limit, err
}

// SetMemoryLimit changes it. Of swap the task keeps what it had. A limit below what the
// task uses is refused, by the kernel or here where the kernel would kill it; files that
// it has read do not count, since the kernel gives up their memory.
func (h *seatHost) SetMemoryLimit(leaseID string, limit int64) error {
	l, err := h.lease(leaseID)
	if err != nil {
		return err
	}
	limits, usage, err := memoryFiles(cgroups.Of(l))
	if len(limits) == 0 {
		return err
	}
	return setMemoryLimits(limits, usage, limit)
}

// setMemoryLimits writes both limits of memory or none.
func setMemoryLimits(limits []string, usage string, limit int64) error {
	before, err := readBytes(limits[0])
	if err != nil || before == limit {
		return err
	}
	if err := checkUsage(usage, limit); err != nil {
		return err
	}
	were := map[string]int64{limits[0]: before}
	if len(limits) > 1 {
		both, err := readBytes(limits[1])
		if err != nil {
			return err
		}
		if were[limits[1]] = both; both >= noMemoryLimit {
			limits = limits[:1]
		}
	}
	if limit > before {
		slices.Reverse(limits) // the limit with swap is never below the one without
	}
	for n, path := range limits {
		_, err := cgroups.Write(path, strconv.FormatInt(were[path]+limit-before, 10))
		if err == nil {
			continue
		}
		for _, done := range limits[:n] { // the first tells what there is to do
			_, again := cgroups.Write(done, strconv.FormatInt(were[done], 10))
			err = errors.Join(err, again)
		}
		if errors.Is(err, syscall.EBUSY) {
			err = fmt.Errorf("%w: %w", seats.ErrInUse, err)
		}
		return err
	}
	return nil
}

// checkUsage refuses a limit for which the kernel would kill processes.
func checkUsage(usage string, limit int64) error {
	if usage == "" {
		return nil
	}
	used, err := readBytes(usage)
	if err != nil || used <= limit {
		return err
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(usage), "memory.stat"))
	if err != nil {
		return err
	}
	if used -= reclaimable(string(text)); used > limit {
		return fmt.Errorf("%w: %d bytes", seats.ErrInUse, used)
	}
	return nil
}

// reclaimable is how much of a control group's memory the kernel can give up, since it is
// of files.
func reclaimable(stat string) int64 {
	sum := int64(0)
	for line := range strings.Lines(stat) {
		name, number, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(number, 10, 64); err == nil && (name == "active_file" || name == "inactive_file") {
			sum += n
		}
	}
	return sum
}

// Save writes the seats down.
func (h *seatHost) Save(s gpu.Seats) error {
	n, err := h.driver.configured()
	if err != nil {
		return err
	}
	return n.state.WriteSeats(s)
}

func (h *seatHost) task(leaseID string) *task {
	all := h.driver.tasks.all()
	if at := slices.IndexFunc(all, func(t *task) bool { return t.record.Lease.ID == leaseID && !t.exited() }); at >= 0 {
		return all[at]
	}
	return nil
}

// Lost ends a task that cannot go on: Nomad starts it again by its restart policy.
func (h *seatHost) Lost(leaseID, reason string) {
	if t := h.task(leaseID); t != nil {
		h.driver.emit(t.cfg, fmt.Sprintf("GPU %s: %s; the task is killed, since it cannot go on", h.uuid, reason), map[string]string{"gpu": h.uuid, "seat": string(gpu.SeatLost)})
		w := watchdog{driver: h.driver}
		w.kill(t, fmt.Errorf("lost its place on the GPU: %s", reason))
	}
}

// Tell is an event of the task.
func (h *seatHost) Tell(leaseID, message string) {
	if t := h.task(leaseID); t != nil {
		h.driver.emit(t.cfg, "GPU "+h.uuid+": "+message, map[string]string{"gpu": h.uuid, "reason": "seat"})
	}
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

func (h *seatHost) leave(t *task) {
	pids, err := h.Processes(t.record.Lease.ID)
	if err == nil {
		ctx, cancel := context.WithTimeout(h.driver.ctx, leaveTime)
		defer cancel()
		_, err = h.Checkpoint(ctx, gpu.CheckpointRequest{Version: gpu.StateVersion, Action: gpu.CheckpointSuspend, UUID: h.uuid, PIDs: pids, LockMS: time.Second.Milliseconds()})
	}
	if err != nil {
		t.logger.Warn("a task that was suspended before is killed on its GPU", "error", err)
	}
}
