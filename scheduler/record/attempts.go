package record

import (
	"fmt"
	"time"
)

// Attempts are how often work was tried to be started in vain, by letting a gang go or
// by evicting others: each time it rests longer before it is tried again.
type Attempts struct {
	Times int       `json:"times"`
	At    time.Time `json:"at"` // the last
	// Missing is how many allocs waited then.
	Missing int `json:"missing,omitempty"`
	// Why is what Nomad said.
	Why string `json:"why,omitempty"`
}

const (
	shortestRest = 2 * time.Minute
	longestRest  = 30 * time.Minute
	// forgotten is after how long without another attempt earlier ones do not count.
	forgotten = 2 * time.Hour
)

// Again is one attempt more, which came to nothing.
func (a Attempts) Again(now time.Time, missing int, why string) Attempts {
	next := Attempts{Times: a.Times + 1, At: now, Missing: missing, Why: why}
	if now.Sub(a.At) > forgotten {
		next.Times = 1
	}
	return next
}

// Until is when it may be tried again: after the first attempt at once, for room comes
// and goes; then after two minutes, four, and so on up to half an hour.
func (a Attempts) Until() time.Time {
	if a.Times < 2 {
		return a.At
	}
	rest := shortestRest
	for n := 2; n < a.Times && rest < longestRest; n++ {
		rest *= 2
	}
	return a.At.Add(min(rest, longestRest))
}

// Clock writes when something is tried again.
func Clock(at time.Time) string { return at.UTC().Format("15:04 UTC") }

// InVain says what came of making room for a group again and again; empty where that
// was not so.
func (g *Group) InVain() string {
	a := &g.Attempts
	held := g.Decision.Hold != nil
	if a.Times < 2 || held && a.Missing == 0 {
		return ""
	}
	outcome := "Nomad did not start it"
	if held {
		outcome = "others took it"
	}
	text := fmt.Sprintf("room was made for it %d times, and %s", a.Times, outcome)
	if a.Why != "" {
		text += ": " + a.Why
	}
	return text + "; not again before " + Clock(a.Until())
}
