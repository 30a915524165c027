// SPDX-License-Identifier: MPL-2.0

// Package procs finds processes of this machine, and tells one from a later one with the same
// number.
package procs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is a running process, told from a later one with the same number by
// the time of its start.
type Process struct {
	PID int `json:"pid"`
	// Start is in clock ticks since boot, as the kernel counts.
	Start uint64 `json:"start"`
}

// Alive reports whether the process still runs.
func (p Process) Alive() bool {
	now, err := Find(p.PID)
	return err == nil && now == p
}

// ErrGone means that a process has ended.
var ErrGone = errors.New("process has ended")

// Find reads who a process is from /proc/<pid>/stat.
func Find(pid int) (Process, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return Process{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	// The command's name stands in brackets and may hold anything.
	_, rest, found := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), ") ")
	fields := strings.Fields(rest)
	const state, start = 0, 19
	if !found || len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return Process{}, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	ticks, err := strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return Process{}, fmt.Errorf("read start of process %d: %w", pid, err)
	}
	return Process{pid, ticks}, nil
}

// PIDs are the numbers of all processes. Some may have ended by now.
func PIDs() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all, nil
}
