// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"math"
)

// words is a time in the two largest units that say it: 95 s, 2 h 57 min, 3 d 4 h.
func words(seconds float64) string {
	s := int64(math.Round(seconds))
	switch {
	case s < 120:
		return fmt.Sprintf("%d s", s)
	case s < 2*3600:
		return fmt.Sprintf("%d min", (s+30)/60)
	case s < 48*3600-30:
		m := (s + 30) / 60
		return fmt.Sprintf("%d h %d min", m/60, m%60)
	}
	h := (s + 1800) / 3600
	return fmt.Sprintf("%d d %d h", h/24, h%24)
}
