package decide

import (
	"fmt"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Nomad may not start what there is room for: a port is taken, a driver or a volume is
// missing. The service does not see such reasons and would try for ever, at the cost of
// what is stopped and evicted meanwhile. So each attempt that came to nothing is
// counted, with what Nomad said, and the next one waits longer.

// SentBack is the hold of a gang of which Nomad started only a part.
func SentBack(started int, of *admit.Ask, why string) string {
	text := fmt.Sprintf("Nomad started %d of its %d allocs, which start together", started, of.Together())
	if why != "" {
		text += ", and says of the others: " + why
	}
	return text
}

// resting is the hold of a gang that went back and is not tried yet; nil where it may be.
func (p *groupPlacer) resting(g *record.Group) *admit.Hold {
	if !rests(g, p.tx.Now()) {
		return nil
	}
	return restHold(&g.Attempts)
}

func rests(g *record.Group, now time.Time) bool {
	return wentBack(g) && now.Before(g.Attempts.Until())
}

// wentBack reports whether the last attempt was that Nomad started a gang in part.
func wentBack(g *record.Group) bool {
	return g.Ask.Gang && g.Attempts.Times > 0 && g.Attempts.Missing == 0
}

// restHold says why a gang went back, and when it is tried again.
func restHold(a *record.Attempts) *admit.Hold {
	text := a.Why
	if a.Until().After(a.At) {
		text += fmt.Sprintf("; it went back %d times and is tried again at %s, or when it is submitted again", a.Times, record.Clock(a.Until()))
	}
	return &admit.Hold{Kind: view.WaitsForRoom, Sentence: text}
}

// roomMade counts that room is made for a group. It is another attempt where the last
// one started nothing of what has waited ever since.
func roomMade(tx *state.Tx, key nomad.JobKey, g *record.Group) record.Attempts {
	now, missing, why := tx.Now(), 0, ""
	vain := false
	if b := tx.Blocked(key); b != nil {
		missing, why = b.Missing[g.Ask.Group], b.Why[g.Ask.Group]
		vain = missing >= g.Attempts.Missing && b.Since.Before(g.Attempts.At)
	}
	if g.Decision.Hold != nil {
		why = "" // Nomad speaks of the hold
	}
	missing = max(1, missing) // 0: it went back
	if !vain {
		return record.Attempts{Times: 1, At: now, Missing: missing}
	}
	return g.Attempts.Again(now, missing, why)
}

// MayEvictFor reports whether evictions for a group may come to something: after two
// that did not, none are tried before its rest is over, and none at all for a gang that
// Nomad does not start as a whole.
func MayEvictFor(g *record.Group, now time.Time) bool {
	mayAgain := !g.Ask.Gang || g.Decision.Hold != nil && !wentBack(g)
	return g.Attempts.Times < 2 || mayAgain && !now.Before(g.Attempts.Until())
}
