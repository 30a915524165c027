// SPDX-License-Identifier: MPL-2.0

// Package cgroup reads the control groups that the kernel keeps a process in.
package cgroup

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Group is the control group that a process is in, in one hierarchy.
type Group struct {
	// Controllers are those of a hierarchy of cgroup v1, or its name, such as
	// "name=systemd". The unified hierarchy has none.
	Controllers []string
	// Path is the group's place in the hierarchy, such as "/nomad/task".
	Path string
}

// Of returns the control groups of a process, in the kernel's order, and an error for a
// process that has ended.
func Of(pid int) ([]Group, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, err
	}
	return Parse(string(text)), nil
}

// Parse reads a /proc/<pid>/cgroup, whose lines are hierarchy:controllers:path. Others
// are left out.
func Parse(text string) []Group {
	var groups []Group
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		g := Group{Path: fields[2]}
		if fields[1] != "" {
			g.Controllers = strings.Split(fields[1], ",")
		}
		groups = append(groups, g)
	}
	return groups
}

// Unified reports whether the group is one of the unified hierarchy, cgroup v2.
func (g Group) Unified() bool { return len(g.Controllers) == 0 }

// Has reports whether a group of cgroup v1 has a controller, or the name of a hierarchy.
func (g Group) Has(controller string) bool { return slices.Contains(g.Controllers, controller) }

// Within reports whether a process of these groups is in the one at path or below it. No
// process is within the root, which would be every process.
func Within(groups []Group, path string) bool {
	path = strings.TrimSuffix(path, "/")
	if strings.Trim(path, "/") == "" {
		return false
	}
	return slices.ContainsFunc(groups, func(g Group) bool { return g.Path == path || strings.HasPrefix(g.Path, path+"/") })
}
