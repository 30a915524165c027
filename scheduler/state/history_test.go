package state

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// TestDecisionsAreNotedOnce: a replica that begins to lead reads what it has
// decided itself.
func TestDecisionsAreNotedOnce(t *testing.T) {
	at := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	first := view.Decision{At: at, JobID: "a", Group: "g"}
	var d history
	for _, v := range []view.Decision{first, {At: at, JobID: "b", Group: "g"}, first, {At: at.Add(1), JobID: "a", Group: "g"}} {
		d.decision(v)
	}
	if len(d.decisions) != 3 {
		t.Errorf("%d decisions are noted, want 3", len(d.decisions))
	}
	first.At = at.In(time.FixedZone("", 3600))
	if d.decision(first); len(d.decisions) != 3 {
		t.Error("the same moment in another zone counts as another")
	}
}
