// SPDX-License-Identifier: MPL-2.0

package state

import (
	"encoding/json"
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

// A replica that begins to lead again reads events that it has noted itself: each is told once.
func TestEventsAreToldOnce(t *testing.T) {
	var h history
	h.event(view.Event{At: time.Now(), Kind: "evict", JobID: "low", Text: "it had to go"}) // with a monotonic clock
	h.event(view.Event{At: time.Now(), Kind: "evict", JobID: "low", Text: "it had to go again"})
	text, err := json.Marshal(h.stored())
	if err != nil {
		t.Fatal(err)
	}
	var stored []view.Event
	if err := json.Unmarshal(text, &stored); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		h.recall(stored)
	}
	if _, got := h.Past(); len(got) != 2 || got[0].Text != "it had to go again" {
		t.Errorf("told are %+v", got)
	}
}
