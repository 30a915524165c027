package record

import (
	"testing"
	"time"
)

// Each attempt that came to nothing makes the next one wait longer, up to half an hour;
// the first makes none wait, and what is long ago does not count.
func TestAttemptsRestLongerEachTime(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var a Attempts
	for i, want := range []time.Duration{0, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 16 * time.Minute, 30 * time.Minute, 30 * time.Minute} {
		a = a.Again(now, 1, "")
		if got := a.Until().Sub(now); a.Times != i+1 || got != want {
			t.Errorf("attempt %d (counted %d) rests %s, want %s", i+1, a.Times, got, want)
		}
		now = a.Until().Add(time.Minute)
	}
	if a = a.Again(now.Add(3*time.Hour), 1, ""); a.Times != 1 {
		t.Errorf("hours later it counts %d attempts", a.Times)
	}
}
