package gpu

import (
	"slices"
	"strings"
)

// WithinCgroup reports whether a process is in a control group or below it, by the lines
// of its /proc/<pid>/cgroup.
func WithinCgroup(lines []string, cgroup string) bool {
	if strings.Trim(cgroup, "/") == "" {
		return false
	}
	return slices.ContainsFunc(lines, func(line string) bool {
		// hierarchy-ID:controllers:path
		fields := strings.SplitN(line, ":", 3)
		return len(fields) == 3 && (fields[2] == cgroup || strings.HasPrefix(fields[2], strings.TrimSuffix(cgroup, "/")+"/"))
	})
}
