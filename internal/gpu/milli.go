package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseMilli reads a part of one GPU's compute from "0.001" to "1" and returns it in
// thousandths.
func ParseMilli(s string) (int64, error) {
	const help = "write a fraction from 0.001 to 1 with at most three decimals, such as 0.6"
	whole, decimals, _ := strings.Cut(s, ".")
	digits := whole + decimals + strings.Repeat("0", max(0, 3-len(decimals)))
	milli, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || len(whole) != 1 || len(decimals) > 3 || countDigits(digits) != len(digits) || strings.HasSuffix(s, ".") || milli < 1 || milli > MilliPerGPU {
		return 0, fmt.Errorf("%.40q is not valid (%s)", s, help)
	}
	return milli, nil
}

// FormatMilli writes thousandths of one GPU's compute as a fraction: "0.6".
func FormatMilli(milli int64) string {
	return strconv.FormatFloat(float64(milli)/MilliPerGPU, 'f', -1, 64)
}
