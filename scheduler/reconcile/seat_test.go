// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// seat is a free seat for job high, beside job low.
func seat() *Item {
	return &Item{
		Job: key("high"), Revision: decide.Revision{Group: "g", Prefer: "n1"},
		Seat: &decide.Seat{
			Promise: decide.Promise{Job: key("high"), Group: "g", Usage: place.Usage{NodeID: "n1"}}, Text: "high takes a seat",
			Aside: []decide.Victim{{AllocID: "a1", Group: "g", Job: key("low"), Node: "n1", Text: "low steps aside"}},
		},
	}
}

func TestASeatIsBookedBeforeItIsTaken(t *testing.T) {
	w := &world{due: []*Item{seat()}}
	run(t, w, time.Second)
	if want := []string{"assume", `revise high prefer="n1" exclude="" for=""`, "register high", "settle high true"}; !slices.Equal(w.script, want) {
		t.Errorf("got  %q\nwant %q", w.script, want)
	}
	if len(w.told) != 1 || w.told[0].Kind != "suspend" || w.told[0].For != "default/high" || w.told[0].AllocID != "a1" || w.told[0].Text != "low steps aside" || w.told[0].DryRun {
		t.Errorf("events %+v", w.told)
	}
}

func TestASeatThatCannotBeTakenIsGivenBack(t *testing.T) {
	w := &world{due: []*Item{seat()}, fails: "register high"}
	run(t, w, time.Second)
	if w.script[len(w.script)-1] != "forget" || len(w.told) != 0 {
		t.Errorf("did %q, said %+v", w.script, w.told)
	}
}

func TestADryRunTakesNoSeat(t *testing.T) {
	c := config.Default()
	c.Preemption.DryRun = true
	w := &world{due: []*Item{seat()}, config: c}
	run(t, w, time.Second)
	if len(w.script) != 0 || len(w.told) != 1 || !w.told[0].DryRun || !strings.Contains(w.told[0].Text, "steps aside") {
		t.Errorf("did %q, said %+v", w.script, w.told)
	}
}
