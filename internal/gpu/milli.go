// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseMilli reads a part of one GPU's compute and returns it in thousandths. It is
// written as a fraction with at most three decimals, "0.001" to "1", or as thousandths,
// "2" to "1000": "0.5" and "500" are the same, and "1" is all of the GPU.
func ParseMilli(s string) (int64, error) {
	const help = "a fraction of a GPU from 0.001 to 1 such as 0.5, or thousandths such as 500"
	whole, decimals, fraction := strings.Cut(s, ".")
	if !fraction && s != "1" {
		if milli, err := strconv.ParseInt(s, 10, 64); err == nil && countDigits(s) == len(s) && s[0] != '0' && milli <= MilliPerGPU {
			return milli, nil
		}
	}
	digits := whole + decimals + strings.Repeat("0", max(0, 3-len(decimals)))
	milli, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || len(whole) != 1 || len(decimals) > 3 || countDigits(digits) != len(digits) || strings.HasSuffix(s, ".") || milli < 1 || milli > MilliPerGPU {
		return 0, fmt.Errorf("%.40q is not valid (%s)%s", s, help, percentHint(s))
	}
	return milli, nil
}

// percentHint says how a percentage is written here.
func percentHint(s string) string {
	percent, found := strings.CutSuffix(s, "%")
	n, err := strconv.ParseFloat(percent, 64)
	if !found || err != nil || n <= 0 || n > 100 {
		return ""
	}
	return fmt.Sprintf("; write %s", strconv.FormatFloat(n/100, 'f', -1, 64))
}

// FormatMilli writes thousandths of one GPU's compute as a fraction: "0.6".
func FormatMilli(milli int64) string {
	return strconv.FormatFloat(float64(milli)/MilliPerGPU, 'f', -1, 64)
}
