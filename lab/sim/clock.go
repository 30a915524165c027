// SPDX-License-Identifier: MPL-2.0

package sim

import "time"

// clock is a second of a trace as the planner's time.
func clock(second float64) time.Time {
	return time.Unix(0, int64(second*float64(time.Second)))
}
