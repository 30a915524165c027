package gpu

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// mibPerUnit holds the units in which people write memory. G is GiB: a GPU's
// memory is a power of two and a task that asked for "8G" must get eight of
// the 1 GiB slices.
var mibPerUnit = map[string]int64{"G": 1024, "GiB": 1024, "M": 1, "MiB": 1}

const memoryHelp = "write a whole number and G, GiB, M or MiB, such as 8G or 512MiB"

// ParseMemory reads an amount of memory such as "8G", "8GiB", "512M" or
// "512MiB" and returns it in MiB. There is no default unit, no fraction and no
// decimal unit (GB): an inexact amount is an error.
func ParseMemory(s string) (int64, error) {
	digits := countDigits(s)
	mib, problem := memoryOf(s[:digits], s[digits:])
	if problem != "" {
		return 0, fmt.Errorf("memory %q: %s; %s", s, problem, memoryHelp)
	}
	return mib, nil
}

// FormatMemory writes MiB in the largest unit that is exact: "8G" or "7680M".
func FormatMemory(mib int64) string {
	if mib != 0 && mib%1024 == 0 {
		return strconv.FormatInt(mib/1024, 10) + "G"
	}
	return strconv.FormatInt(mib, 10) + "M"
}

// memoryOf returns MiB, or the mistake in the number or its unit.
func memoryOf(number, unit string) (int64, string) {
	if number == "" {
		return 0, "no number"
	}
	factor, ok := mibPerUnit[unit]
	if !ok {
		return 0, unitProblem(unit)
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64/factor {
		return 0, "the number is too large"
	}
	if number[0] == '0' {
		return 0, "the number is zero or has a leading zero"
	}
	return n * factor, ""
}

func unitProblem(unit string) string {
	switch {
	case unit == "":
		return "the unit is missing"
	case strings.EqualFold(unit, "GB"), strings.EqualFold(unit, "MB"):
		return fmt.Sprintf("unit %q is decimal and ambiguous, memory is binary", unit)
	case strings.HasPrefix(unit, "."):
		return "the number is not whole"
	default:
		return fmt.Sprintf("unknown unit %q", unit)
	}
}

// countDigits returns how many of the first bytes of s are ASCII digits.
func countDigits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
