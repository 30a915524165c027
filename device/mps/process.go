package mps

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is a running process, told from a later one with the same number by
// the time of its start.
type process struct {
	PID int `json:"pid"`
	// Start is in clock ticks since boot, as the kernel counts.
	Start uint64 `json:"start"`
}

// alive reports whether the process still runs.
func (p process) alive() bool {
	now, err := findProcess(p.PID)
	return err == nil && now == p
}

// errGone means that a process has ended.
var errGone = errors.New("process has ended")

// findProcess reads who a process is from /proc/<pid>/stat.
func findProcess(pid int) (process, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return process{}, fmt.Errorf("process %d: %w", pid, errGone)
	}
	// The command's name stands in brackets and may hold anything.
	_, rest, found := strings.Cut(string(text[strings.LastIndexByte(string(text), ')'):]), ") ")
	fields := strings.Fields(rest)
	const state, start = 0, 19
	if !found || len(fields) <= start || fields[state] == "Z" || fields[state] == "X" {
		return process{}, fmt.Errorf("process %d: %w", pid, errGone)
	}
	ticks, err := strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return process{}, fmt.Errorf("read start of process %d: %w", pid, err)
	}
	return process{pid, ticks}, nil
}

// readPIDFile finds the process that a PID file names.
func readPIDFile(path string) (process, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return process{}, fmt.Errorf("read PID file: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return process{}, fmt.Errorf("read PID file %s: %q is not a process ID", path, firstLine(string(text)))
	}
	return findProcess(pid)
}

// kill ends a process and its children, the MPS servers.
func (p process) kill() {
	if !p.alive() {
		return
	}
	for _, child := range children(p.PID) {
		_ = unix.Kill(child, unix.SIGKILL)
	}
	_ = unix.Kill(p.PID, unix.SIGKILL)
}

func children(pid int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var all []int
	for _, field := range strings.Fields(string(text)) {
		if child, err := strconv.Atoi(field); err == nil {
			all = append(all, child)
		}
	}
	return all
}

// environHas reports whether a process was started with a variable: a PID file
// may name a process that is no MPS daemon of ours.
func (p process) environHas(entry string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.PID))
	return err == nil && strings.Contains("\x00"+string(text), "\x00"+entry+"\x00")
}

func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("find MPS control program: %w", err)
	}
	return path, nil
}
