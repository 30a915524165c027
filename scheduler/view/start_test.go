// SPDX-License-Identifier: MPL-2.0

package view_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// When something starts is said in units that people use, as a range where there is one, and
// with how often such ranges held once enough are known.
func TestStartsAreSaidAsPeopleDo(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	const waits = "number 2 of 5 that wait; "
	for _, row := range []struct {
		soonest, likely, latest time.Duration
		held, of                int
		want                    string
	}{
		{20 * time.Minute, 25 * time.Minute, 40 * time.Minute, 0, 0, "likely to start in 25 min, between 20 min and 40 min"},
		{20 * time.Minute, 20 * time.Minute, 20 * time.Minute, 8, 10, "likely to start in 20 min"},
		{0, time.Minute - 1, time.Minute, 8, 9, "likely to start in less than a minute, between less than a minute and 1 min"},
		{90*time.Minute - 1, 90 * time.Minute, 48*time.Hour - 1, 8, 10, "likely to start in 1.5 h, between 90 min and 48.0 h (8 of the last 10 such ranges held)"},
		{time.Hour, 48 * time.Hour, 60 * time.Hour, 25, 25, "likely to start in 2.0 days, between 60 min and 2.5 days (25 of the last 25 such ranges held)"},
	} {
		s := view.Start{Turn: 2, Of: 5, Known: true, Soonest: now.Add(row.soonest), Likely: now.Add(row.likely), Latest: now.Add(row.latest), Held: row.held, HeldOf: row.of}
		if got := s.Text(now); got != waits+row.want {
			t.Errorf("it says %q, want %q", got, row.want)
		}
		s.Known = false
		if got := s.Text(now); got != waits+"when it starts is not known" {
			t.Errorf("of what is not known it says %q", got)
		}
	}
}

// An estimate that time has overtaken is no promise any more, and no group is number 0 of 0.
func TestAStartThatIsLateIsSaidToBe(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for want, s := range map[string]view.Start{
		"number 1 of 2 that wait; it was to start by 2027-01-15T07:59:00Z, and is late": {Turn: 1, Of: 2, Known: true, Soonest: now.Add(-time.Hour), Likely: now.Add(-time.Hour), Latest: now.Add(-time.Minute)},
		"its place in the order is not known yet; when it starts is not known":          {},
	} {
		if got := s.Text(now); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}

// What would start instead is said for one alloc and for several.
func TestWhatWouldFitIsSaid(t *testing.T) {
	for want, f := range map[string]view.Fits{
		"nothing smaller would start now":                   {Allocs: 2, Nodes: 3},
		"4G would start now on 1 node":                      {Ask: "4G", Allocs: 1, Nodes: 1},
		"4G would start now on 2 nodes":                     {Ask: "4G", Allocs: 1, Nodes: 2},
		"2 allocs of 4G each would start now, on 1 node":    {Ask: "4G", Allocs: 2, Nodes: 1},
		"3 allocs of 0.5 each would start now, on 10 nodes": {Ask: "0.5", Allocs: 3, Nodes: 10},
	} {
		if got := f.Text(); got != want {
			t.Errorf("it says %q, want %q", got, want)
		}
	}
}
