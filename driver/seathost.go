// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nomad-gpu/nomad-gpu/driver/cgroups"
	"github.com/nomad-gpu/nomad-gpu/driver/seats"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

var _ seats.Host = (*seatHost)(nil)

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

// SetMemoryLimit changes it. The task keeps its swap. A limit below the task's use is
// refused, by the kernel or here where the kernel would kill it; files that it has read
// do not count, since the kernel gives up their memory.
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

// cameBack reports whether a task was on the host once. The caller holds the device.
func (h *seatHost) cameBack(leaseID string) bool {
	device := h.driver.seats.known(h.uuid)
	return device != nil && device.controller != nil && slices.ContainsFunc(device.controller.Seats(),
		func(s gpu.Seat) bool { return s.LeaseID == leaseID && s.Resumed })
}

// Lost ends a task that cannot go on: Nomad starts it again by its restart policy.
func (h *seatHost) Lost(leaseID, reason string) {
	if t := h.task(leaseID); t != nil {
		h.driver.emit(t.cfg, fmt.Sprintf("GPU %s: %s; the task is killed, since it cannot go on", h.uuid, reason), map[string]string{"gpu": h.uuid, "seat": string(gpu.SeatLost)})
		if h.cameBack(leaseID) {
			h.leave(t)
		}
		h.driver.killFor(t, fmt.Errorf("lost its place on the GPU: %s", reason))
	}
}

// Tell is an event of the task.
func (h *seatHost) Tell(leaseID, message string) {
	if t := h.task(leaseID); t != nil {
		h.driver.emit(t.cfg, "GPU "+h.uuid+": "+message, map[string]string{"gpu": h.uuid, "reason": "seat"})
	}
}
