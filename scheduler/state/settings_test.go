// SPDX-License-Identifier: MPL-2.0

package state

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
)

// Placement hears of a use in steps of the threshold, and not while it changed by less.
func TestNoticed(t *testing.T) {
	s := settings{&config.Config{ChangeThresholdMilli: 50}}
	for _, row := range []struct{ before, now, want int64 }{
		{0, 0, 0}, {0, 49, 0}, {0, 50, 50}, {0, 99, 50}, {100, 149, 100}, {100, 150, 150}, {100, 51, 100}, {100, 50, 50}, {100, 0, 0},
	} {
		if got := s.noticed(row.before, row.now); got != row.want {
			t.Errorf("%d, and now %d: noticed as %d, want %d", row.before, row.now, got, row.want)
		}
	}
	every := settings{&config.Config{}}
	if got := every.noticed(7, 8); got != 8 {
		t.Errorf("without a threshold 8 is noticed as %d", got)
	}
}
