// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"testing"
	"time"
)

func TestDurationsAreCounted(t *testing.T) {
	var d Durations
	for _, took := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 101 * time.Millisecond, time.Minute, time.Hour} {
		d.Add(took)
	}
	all, within := d.Cumulative()
	if all != 5 || within[0.1] != 2 || within[0.25] != 3 || within[30] != 3 || within[60] != 4 || within[1800] != 4 || len(within) != len(DurationBounds) {
		t.Errorf("%d in all, within %v", all, within)
	}
	var none Durations
	if all, within := none.Cumulative(); all != 0 || len(within) != 0 {
		t.Errorf("none: %d, %v", all, within)
	}
}

// What two processes counted adds up; durations of a release with other bounds do not.
func TestDriverCountsAddUp(t *testing.T) {
	a, b := NewDriverCounts(), NewDriverCounts()
	a.Starts[StartDone], a.Kills["memory"] = 2, 1
	a.StartTimes.Add(time.Second)
	b.Starts[StartDone], b.Starts["image"], b.Pulls[PullFailed] = 3, 1, 4
	b.StartTimes.Add(time.Minute)
	b.PullTimes = Durations{Buckets: []int64{7}, Seconds: 7}
	sum := a.Plus(b).Plus(DriverCounts{})
	all, _ := sum.StartTimes.Cumulative()
	pulls, _ := sum.PullTimes.Cumulative()
	if sum.Starts[StartDone] != 5 || sum.Starts["image"] != 1 || sum.Pulls[PullFailed] != 4 || sum.Kills["memory"] != 1 || all != 2 || sum.StartTimes.Seconds != 61 || pulls != 0 || sum.PullTimes.Seconds != 0 {
		t.Errorf("got %+v", sum)
	}
	if a.Starts[StartDone] != 2 {
		t.Error("a summand was changed")
	}
}
