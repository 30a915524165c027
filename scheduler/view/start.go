// SPDX-License-Identifier: MPL-2.0

package view

import (
	"fmt"
	"time"
)

// Start is when something that waits is likely to start.
type Start struct {
	// Turn is its place in the order of all that wait, from 1; Of is how many these are.
	Turn int `json:"turn"`
	Of   int `json:"of"`
	// Known is false where no time can be said: what runs in its way is not known to end,
	// or it waits for its queue.
	Known   bool      `json:"known"`
	Soonest time.Time `json:"soonest,omitzero"`
	Likely  time.Time `json:"likely,omitzero"`
	Latest  time.Time `json:"latest,omitzero"`
	// Held is how many of the last HeldOf estimates were right: the start was between
	// soonest and latest.
	Held   int `json:"held,omitempty"`
	HeldOf int `json:"held_of,omitempty"`
	// ShorterUntil is until when later, shorter work still goes first; zero where it never does.
	ShorterUntil time.Time `json:"shorter_until,omitzero"`
}

// Text is the start for people, as of a time.
func (s *Start) Text(now time.Time) string {
	turn := fmt.Sprintf("number %d of %d that wait", s.Turn, s.Of)
	if s.Of == 0 {
		turn = "its place in the order is not known yet"
	}
	if s.ShorterUntil.After(now) {
		turn += fmt.Sprintf(", before which shorter work goes that comes until %s", s.ShorterUntil.UTC().Format(time.RFC3339))
	}
	switch {
	case !s.Known:
		return turn + "; when it starts is not known"
	case !s.Latest.After(now):
		return fmt.Sprintf("%s; it was to start by %s, and is late", turn, s.Latest.UTC().Format(time.RFC3339))
	}
	likely, soonest, latest := about(s.Likely.Sub(now)), about(s.Soonest.Sub(now)), about(s.Latest.Sub(now))
	if soonest == latest {
		return fmt.Sprintf("%s; likely to start in %s", turn, likely)
	}
	text := fmt.Sprintf("%s; likely to start in %s, between %s and %s", turn, likely, soonest, latest)
	if s.HeldOf >= fewest {
		text += fmt.Sprintf(" (%d of the last %d such ranges held)", s.Held, s.HeldOf)
	}
	return text
}

// fewest is from how many estimates on people are told how many were right.
const fewest = 10

// about rounds a time as people do.
func about(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "less than a minute"
	case d < 90*time.Minute:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	}
	return fmt.Sprintf("%.1f days", d.Hours()/24)
}
