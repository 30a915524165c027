// SPDX-License-Identifier: MPL-2.0

package taskconfig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// maxCPU is the highest number that a list of CPUs may have: no kernel is built
// for more.
const maxCPU = 8191

// ParseCPUs reads a list of CPUs, or of memory nodes, as the kernel writes it:
// "0-3,8". The empty list is empty.
func ParseCPUs(list string) (map[int]bool, error) {
	cpus := map[int]bool{}
	list = strings.TrimSpace(list)
	if list == "" {
		return cpus, nil
	}
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := parseCPU(low)
		last := first
		if err == nil && isRange {
			last, err = parseCPU(high)
		}
		if err != nil || first > last {
			return nil, fmt.Errorf("%q is not a list such as 0-3,8", list)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus[cpu] = true
		}
	}
	return cpus, nil
}

func parseCPU(text string) (int, error) {
	cpu, err := strconv.ParseUint(text, 10, 16)
	if err == nil && cpu > maxCPU {
		err = strconv.ErrRange
	}
	return int(cpu), err
}

// FormatCPUs writes a list of CPUs as the kernel does.
func FormatCPUs(cpus map[int]bool) string {
	var parts []string
	sorted := slices.Sorted(maps.Keys(cpus))
	for i := 0; i < len(sorted); {
		end := i
		for end+1 < len(sorted) && sorted[end+1] == sorted[end]+1 {
			end++
		}
		part := strconv.Itoa(sorted[i])
		if end > i {
			part += "-" + strconv.Itoa(sorted[end])
		}
		parts = append(parts, part)
		i = end + 1
	}
	return strings.Join(parts, ",")
}

// CPUsWithin returns the CPUs of wanted that are in shared, the list that tasks
// without cores of their own may use now. Like the kernel of cgroup v2 it returns
// all of shared where nothing is wanted, or nothing that is wanted is left; kept
// tells the last case.
func CPUsWithin(wanted, shared string) (list string, kept bool, err error) {
	have, err := ParseCPUs(shared)
	if err != nil {
		return "", false, err
	}
	want, err := ParseCPUs(wanted)
	if err != nil {
		return "", false, err
	}
	if len(want) == 0 {
		return FormatCPUs(have), true, nil
	}
	maps.DeleteFunc(want, func(cpu int, _ bool) bool { return !have[cpu] })
	if len(want) == 0 {
		return FormatCPUs(have), false, nil
	}
	return FormatCPUs(want), true, nil
}
