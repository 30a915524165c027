// SPDX-License-Identifier: MPL-2.0

package state

import "time"

// clock tells the time.
type clock func() time.Time

// Now is what time it is.
func (c clock) Now() time.Time { return c() }

// Within reports whether something was done less than limit ago. A time that far ahead
// does not count: the clock was set back, or that of an earlier leader was ahead.
func (c clock) Within(at time.Time, limit time.Duration) bool {
	return c().Sub(at).Abs() < limit
}
