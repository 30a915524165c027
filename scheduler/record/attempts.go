// SPDX-License-Identifier: MPL-2.0

package record

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
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
	// Nodes are where room was made for one alloc that Nomad then did not start there, and where
	// it was made last: they are left out for some time, until they change or the job does.
	Nodes map[string]Tried `json:"nodes,omitempty"`
}

// Tried is an attempt on one node.
type Tried struct {
	Index uint64    `json:"index"` // Nomad's modify index of the node then
	At    time.Time `json:"at"`
}

// Equal reports whether nothing differs.
func (a Attempts) Equal(b Attempts) bool {
	return a.Times == b.Times && a.At.Equal(b.At) && a.Missing == b.Missing && a.Why == b.Why &&
		maps.EqualFunc(a.Nodes, b.Nodes, func(x, y Tried) bool { return x.Index == y.Index && x.At.Equal(y.At) })
}

const (
	shortestRest = 2 * time.Minute
	longestRest  = 30 * time.Minute
	// leftOut is for how long a node is left out where an attempt came to nothing: it may be
	// because of what runs there beside GPUs, which the service does not follow.
	leftOut = 24 * time.Hour
	// forgotten is after how long without another attempt earlier ones do not count.
	forgotten = 2 * time.Hour
)

// Again is one attempt more, which came to nothing.
func (a Attempts) Again(now time.Time, missing int, why string) Attempts {
	next := Attempts{Times: a.Times + 1, At: now, Missing: missing, Why: why, Nodes: a.Nodes}
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

// Counts reports whether an attempt on a node still speaks against it, which has an index now.
func (t Tried) Counts(now time.Time, index uint64) bool {
	return t.Index == index && now.Sub(t.At) < leftOut
}

// Clock writes when something is tried again.
func Clock(at time.Time) string { return at.UTC().Format("15:04 UTC") }

// InVain says what came of making room for a group again and again; empty where that
// was not so.
func (g *Group) InVain() string {
	a := &g.Attempts
	held := g.Decision.Hold != nil
	if a.Times < 2 || held && a.Missing == 0 && (g.Decision.Hold.Kind != view.WaitsForRoom || strings.HasPrefix(g.Decision.Hold.Sentence, a.Why)) { // it says so already
		return ""
	}
	outcome := "Nomad did not start it"
	if held && a.Why == "" {
		outcome = "others took it"
	}
	text := fmt.Sprintf("room was made for it %d times, and %s", a.Times, outcome)
	if a.Why != "" {
		text += ": " + a.Why
	}
	text += "; not again before " + Clock(a.Until())
	if len(a.Nodes) > 0 {
		text += ", and for a day only on other nodes, unless those or the job change"
	}
	return text
}
