// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"time"

	"golang.org/x/sys/unix"
)

// ThreadClock reads the CPU time of the calling thread, which a busy machine
// does not change. Lock the goroutine to its thread while measuring.
func ThreadClock() time.Time {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return time.Now()
	}
	return time.Unix(t.Unix())
}
