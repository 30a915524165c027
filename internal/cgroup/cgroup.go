// Package cgroup reads the control groups that the kernel keeps a process in.
package cgroup

import (
	"fmt"
	"os"
	"strings"
)

// Of returns the lines of a process's /proc/<pid>/cgroup, such as "0::/nomad/task", and an
// error for a process that has ended.
func Of(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n"), nil
}
