// SPDX-License-Identifier: MPL-2.0

package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long processes that were killed may take to end. One that
// waits for a GPU's driver may take for ever.
const patience = 10 * time.Second

// pause is between two looks at a control group.
const pause = 10 * time.Millisecond

// ErrStillRuns means that processes of a container do not end.
var ErrStillRuns = errors.New("processes do not end after SIGKILL")

// Remove empties the control group of a container that is gone, and removes
// it with those that its processes made below. The container runtime does that,
// unless it is killed before it comes to it.
func Remove(ctx context.Context, path string, unified bool) error {
	for deadline := time.Now().Add(patience); ; {
		if err := Empty(ctx, path, unified); err != nil {
			return err
		}
		dirs, err := Tree(path, unified)
		if err != nil {
			return err
		}
		err = removeDirs(dirs)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %w", ErrStillRuns, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// Empty kills the rest of the control group of a container that is gone,
// and waits until it has ended. A group that does not exist is empty. It returns
// ErrStillRuns for processes that do not end.
func Empty(ctx context.Context, path string, unified bool) error {
	for deadline := time.Now().Add(patience); ; {
		dirs, err := Tree(path, unified)
		if err != nil {
			return err
		}
		pids, err := Processes(dirs)
		if err != nil || len(pids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("control group %s: %w: %v", path, ErrStillRuns, pids)
		}
		if err := killIn(dirs, pids); err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("control group %s: wait for the end of processes %v: %w", path, pids, ctx.Err())
		}
	}
}

func removeDirs(dirs []string) error {
	for _, dir := range slices.Backward(dirs) {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove control group %s: %w", dir, err)
		}
	}
	return nil
}

// Processes lists the processes in control groups. One of another PID namespace
// is 0.
func Processes(dirs []string) ([]int, error) {
	var pids []int
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // removed meanwhile, or of threads, whose process the group above lists
		}
		if err != nil {
			return nil, fmt.Errorf("list processes of control group: %w", err)
		}
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return nil, fmt.Errorf("list processes of control group %s: %w", dir, err)
			}
			if !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// killIn kills the processes in control groups: by the kernel's own means where it
// has them (cgroup v2 since Linux 5.14), else one by one, and thawed.
func killIn(dirs []string, pids []int) error {
	for _, dir := range dirs {
		killed, err := Write(filepath.Join(dir, "cgroup.kill"), "1")
		if killed || err != nil {
			return err // the groups below it too
		}
		if _, err := Write(filepath.Join(dir, "freezer.state"), "THAWED"); err != nil {
			return err
		}
	}
	held := map[int]*os.Process{}
	for _, pid := range pids {
		if process, err := os.FindProcess(pid); err == nil && pid != 0 {
			held[pid] = process
			defer func() { _ = process.Release() }()
		}
	}
	// A process that is still there now is the held one, and no other of the same number.
	still, err := Processes(dirs)
	if err != nil {
		return err
	}
	for _, pid := range still {
		if process := held[pid]; process != nil {
			if err := process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
	}
	return nil
}

// Write writes to a file of a control group, if the kernel offers it.
func Write(path, value string) (offered bool, err error) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteString(value)
		err = errors.Join(err, file.Close())
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	return err == nil, err
}
