package state

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
)

// What was recorded is under way until Nomad should have taken it, or told of it. What is dated
// ahead, by a leader with another clock or before the clock was set back, is not until the clock
// is there again.
func TestUnderWay(t *testing.T) {
	for name, row := range map[string]struct {
		ago      time.Duration
		settled  bool
		underWay bool
	}{
		"just written":                  {0, false, true},
		"as long as a job may take":     {Unseen - 1, false, true},
		"longer":                        {Unseen, false, false},
		"just settled":                  {0, true, true},
		"settled, and no echo yet":      {Echo - 1, true, true},
		"settled, and the echo is late": {Echo, true, false},
		"ahead by a moment":             {-time.Second, false, true},
		"ahead by a moment, settled":    {-time.Second, true, true},
		"ahead by seconds, settled":     {-Echo, true, false},
		"ahead by half a minute":        {-Unseen, false, false},
		"ahead by an hour":              {-time.Hour, false, false},
	} {
		r := record.New(oneJob)
		if r.At = noon.Add(-row.ago); row.settled {
			r.At, r.Settled = noon.Add(-time.Hour), r.At
		}
		if got := newRecords(atNoon, nil).UnderWay(r); got != row.underWay {
			t.Errorf("%s: under way: %v", name, got)
		}
	}
}
