// SPDX-License-Identifier: MPL-2.0

package state

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

type recordRow struct {
	ago      time.Duration
	settled  bool
	underWay bool
}

func (row recordRow) check(t *testing.T, name string) {
	t.Helper()
	r := record.New(oneJob)
	if r.At = noon.Add(-row.ago); row.settled {
		r.At, r.Settled = noon.Add(-time.Hour), r.At
	}
	if got := newRecords(atNoon, nil).UnderWay(r); got != row.underWay {
		t.Errorf("%s: under way: %v", name, got)
	}
}

// What was recorded is under way until Nomad should have taken it, or told of it.
func TestUnderWay(t *testing.T) {
	for name, row := range map[string]recordRow{
		"just written":                  {0, false, true},
		"as long as a job may take":     {Unseen - 1, false, true},
		"longer":                        {Unseen, false, false},
		"just settled":                  {0, true, true},
		"settled, and no echo yet":      {Echo - 1, true, true},
		"settled, and the echo is late": {Echo, true, false},
	} {
		row.check(t, name)
	}
}

// A record that a leader with a clock ahead has written, or that is from before the clock was set
// back, is not on its way until the clock is there again.
func TestWhatIsDatedAheadIsNotUnderWay(t *testing.T) {
	for name, row := range map[string]recordRow{
		"a moment":              {-time.Second, false, true},
		"a moment, and settled": {-time.Second, true, true},
		"settled, some seconds": {-Echo, true, false},
		"half a minute":         {-Unseen, false, false},
		"an hour":               {-time.Hour, false, false},
	} {
		row.check(t, name)
	}
}
