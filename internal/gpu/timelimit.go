// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"time"
)

// TimeLimit is how long work runs at most, as its author says; 0: nothing is said.
type TimeLimit = time.Duration

// longestLimit is the longest that a time limit can be.
const longestLimit = 365 * 24 * time.Hour

// ParseTimeLimit reads a time limit, such as 90m or 36h; "" is 0.
func ParseTimeLimit(text string) (TimeLimit, error) {
	if text == "" {
		return 0, nil
	}
	limit, err := time.ParseDuration(text)
	if err != nil || limit < time.Second || limit > longestLimit {
		return 0, fmt.Errorf("%q is not valid (how long an allocation runs at most, from 1s to %.0fh: 90m, 36h)", text, longestLimit.Hours())
	}
	return limit, nil
}

// ShorterLimit is the time limit of work that has two: the author's, and the one that Nomad
// enforces (max_run_duration).
func ShorterLimit(a, b TimeLimit) TimeLimit {
	if a <= 0 || b > 0 && b < a {
		return max(b, 0)
	}
	return a
}

// Bounds and default of how long work waits for a GPU until it falls back to the CPU.
const (
	defaultFallback = 10 * time.Minute
	longestFallback = 30 * 24 * time.Hour
)

// ParseFallbackAfter reads how long work waits for a GPU until it falls back to the CPU, such
// as 10m or 2h; "" is 10 minutes.
func ParseFallbackAfter(text string) (TimeLimit, error) {
	if text == "" {
		return defaultFallback, nil
	}
	after, err := time.ParseDuration(text)
	if err != nil || after < time.Second || after > longestFallback {
		return 0, fmt.Errorf("%q is not valid (how long to wait for a GPU, from 1s to %.0fh: 10m, 2h)", text, longestFallback.Hours())
	}
	return after, nil
}
