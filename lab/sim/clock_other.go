// SPDX-License-Identifier: MPL-2.0

//go:build !linux

package sim

import "time"

// ThreadClock is the wall clock where threads have no clock of their own.
func ThreadClock() time.Time { return time.Now() }
