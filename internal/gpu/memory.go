// SPDX-License-Identifier: MPL-2.0

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
	mib, problem := amountOf(s[:digits], s[digits:], mibPerUnit)
	if problem != "" {
		return 0, fmt.Errorf("memory %q: %s; %s", s, problem, memoryHelp)
	}
	return mib, nil
}

// bytesPerUnit holds the units of sizes on the host, which may be smaller and larger
// than a GPU's. Docker's way to write them, "64m", is understood.
var bytesPerUnit = map[string]int64{
	"K": 1 << 10, "KiB": 1 << 10, "k": 1 << 10, "M": 1 << 20, "MiB": 1 << 20, "m": 1 << 20,
	"G": 1 << 30, "GiB": 1 << 30, "g": 1 << 30, "T": 1 << 40, "TiB": 1 << 40, "t": 1 << 40,
}

// ParseBytes reads a size on the host, such as "64M", "100G" or "2TiB", by the rules of
// ParseMemory, and returns it in bytes.
func ParseBytes(s string) (int64, error) {
	digits := countDigits(s)
	bytes, problem := amountOf(s[:digits], s[digits:], bytesPerUnit)
	if problem == "" {
		return bytes, nil
	}
	help := "a whole number and K, M, G or T, such as 512M"
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 1<<10 && digits == len(s) {
		help += "; as bytes it is " + formatBytes(n)
	}
	return 0, fmt.Errorf("%.40q is not valid: %s (%s)", s, problem, help)
}

// ParseBytesOrZero is ParseBytes for a key where "0" has a meaning.
func ParseBytesOrZero(s string) (int64, error) {
	if s == "0" {
		return 0, nil
	}
	return ParseBytes(s)
}

// formatBytes writes a size in the largest unit that is exact, rounded up to 1 KiB.
func formatBytes(n int64) string {
	kib := (n-1)/1024 + 1
	for _, unit := range []string{"K", "M", "G"} {
		if kib%1024 != 0 || unit == "G" {
			return strconv.FormatInt(kib, 10) + unit
		}
		kib /= 1024
	}
	return ""
}

// FormatMemory writes MiB in the largest unit that is exact: "8G" or "7680M".
func FormatMemory(mib int64) string {
	if mib != 0 && mib%1024 == 0 {
		return strconv.FormatInt(mib/1024, 10) + "G"
	}
	return strconv.FormatInt(mib, 10) + "M"
}

// amountOf returns a number times its unit, or the mistake in one of them.
func amountOf(number, unit string, units map[string]int64) (int64, string) {
	if number == "" {
		return 0, "no number"
	}
	factor, ok := units[unit]
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
	case len(unit) == 2 && strings.ContainsAny(unit[:1], "kKmMgGtT") && strings.EqualFold(unit[1:], "B"):
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
