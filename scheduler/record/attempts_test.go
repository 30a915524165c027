// SPDX-License-Identifier: MPL-2.0

package record

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
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

// Who waits is told what came of it from the second attempt on, with what Nomad said, and
// when it is tried again; not where it is held for another reason.
func TestWhatCameOfAttemptsIsTold(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for name, row := range map[string]struct {
		times int
		why   string
		hold  *admit.Hold
		want  []string // in what is told; none: nothing is
	}{
		"never":            {0, "", nil, nil},
		"once":             {1, "no CPU", nil, nil},
		"twice":            {2, "", nil, []string{"2 times", "12:02 UTC"}},
		"with a reason":    {3, "no CPU", nil, []string{"3 times", ": no CPU;", "12:04 UTC"}},
		"held for another": {3, "no CPU", &admit.Hold{Kind: "quota"}, nil},
	} {
		g := &Group{Attempts: Attempts{Times: row.times, At: now, Why: row.why}, Decision: admit.Decision{Hold: row.hold}}
		got := g.InVain()
		for _, want := range row.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q, want it to say %q", name, got, want)
			}
		}
		if (got == "") != (row.want == nil) || row.why == "" && strings.Contains(got, ": ") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A record of a release before this one names no nodes; one of this is read back as it was.
func TestAttemptsRoundTrip(t *testing.T) {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	with := Attempts{Times: 2, At: at, Missing: 1, Nodes: map[string]Tried{"n": {Index: 7, At: at}}}
	text, err := json.Marshal(with)
	if err != nil {
		t.Fatal(err)
	}
	for written, want := range map[string]Attempts{
		string(text): with,
		`{"times":2,"at":"2026-11-22T12:00:00Z","missing":1}`: {Times: 2, At: at, Missing: 1},
	} {
		var got Attempts
		if err := json.Unmarshal([]byte(written), &got); err != nil || !got.Equal(want) {
			t.Errorf("%s: read as %+v, %v", written, got, err)
		}
	}
	for name, row := range map[string]struct {
		after  time.Duration
		index  uint64
		counts bool
	}{
		"now": {0, 7, true}, "hours later": {23 * time.Hour, 7, true}, "a day later": {24 * time.Hour, 7, false}, "of a node that changed": {0, 8, false},
	} {
		if got := with.Nodes["n"].Counts(at.Add(row.after), row.index); got != row.counts {
			t.Errorf("%s: it counts: %v", name, got)
		}
	}
}
