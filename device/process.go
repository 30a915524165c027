// SPDX-License-Identifier: MPL-2.0

package device

import (
	"time"

	"github.com/prometheus/procfs"
)

// processStart is when a process of the host began; false if it has ended.
func processStart(pid int) (time.Time, bool) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return time.Time{}, false
	}
	stat, err := process.Stat()
	if err != nil {
		return time.Time{}, false
	}
	seconds, err := stat.StartTime()
	if err != nil {
		return time.Time{}, true // it runs, and might be as old as any
	}
	return time.UnixMilli(int64(seconds * 1000)), true
}
