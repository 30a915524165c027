// SPDX-License-Identifier: MPL-2.0

package mpsctl

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// SameMemory reports whether an answer can be a limit of mib MiB; no limit is
// 0, or no answer. Daemons round down to whole GiB where there is one, so what
// they were given is known no better than that.
func SameMemory(answer string, mib int64) bool {
	if answer == "" {
		return mib == 0
	}
	got, unit, err := ParseMemory(answer)
	return err == nil && (got == mib || unit == "G" && got == mib>>10<<10)
}

// memoryAmount is how a daemon may write an amount: "8192M", "8 GB", or bytes,
// decimal or not, after whatever it says before.
var memoryAmount = regexp.MustCompile(`(?i)(?:^|[\s:=])(0x[0-9a-f]+|[0-9]+)\s*([kmg]?)i?b?$`)

// ParseMemory reads the amount at the end of an answer's first line, in MiB, and
// the unit that it is written in.
func ParseMemory(s string) (mib int64, unit string, err error) {
	match := memoryAmount.FindStringSubmatch(FirstLine(s))
	if match == nil {
		return 0, "", fmt.Errorf("read memory limit %q: there is no amount", s)
	}
	number, err := strconv.ParseInt(match[1], 0, 64)
	if err != nil {
		return 0, "", fmt.Errorf("read memory limit %q: %w", s, err)
	}
	if number > math.MaxInt64>>20 {
		return 0, "", fmt.Errorf("read memory limit %q: the amount is out of range", s)
	}
	switch unit = strings.ToUpper(match[2]); unit {
	case "G":
		return number << 10, unit, nil
	case "M":
		return number, unit, nil
	case "K":
		return number >> 10, unit, nil
	}
	return number >> 20, unit, nil
}
