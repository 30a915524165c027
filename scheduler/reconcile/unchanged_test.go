// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
)

// submitUnchanged submits a job as it is registered, of which Nomad makes no new version.
func (h *modelRun) submitUnchanged(t *testing.T, raw json.RawMessage) {
	t.Helper()
	j, err := admit.Read([]byte(`{"Job":`+string(raw)+`}`), admit.Query{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := h.decider.Decide(t.Context(), j.Asks, false)
	if err != nil {
		t.Fatal(err)
	}
	body, err := j.Apply(d, admit.Link{})
	if err != nil {
		t.Fatal(err)
	}
	known := h.jobs[j.Namespace+"/"+j.ID]
	var now struct{ Job any }
	var was any
	if err := errors.Join(json.Unmarshal(body, &now), json.Unmarshal(known.versions[len(known.versions)-1], &was)); err != nil || !reflect.DeepEqual(now.Job, was) {
		t.Fatalf("%v: it is registered as\n%v\nand was as\n%v", err, now.Job, was)
	}
	h.decider.Settle(t.Context(), j.Asks, d, true)
	h.decider.Unchanged(j.Asks, known.index)
}

// Regression: room was kept for what had completed of a job that its author submitted again and again,
// unchanged. Nomad runs nothing again then, so the room stayed empty, and a gang never got it.
func TestNoRoomIsKeptForWhatHasCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 4, 1, "preemption {\n min_run_time = \"0s\"\n}\n")
		shards := json.RawMessage(strings.Replace(string(slowJob("c", "shards", "0", 4, 20, "")), `"service"`, `"batch"`, 1))
		h.submit(t.Context(), shards)
		h.seconds(20)
		for _, a := range h.allocsOf("shards")[:3] {
			h.complete(a)
		}
		h.seconds(20)
		for n := range 10 {
			h.submitUnchanged(t, shards)
			if n == 2 {
				h.submit(t.Context(), gangJob("gang", 3, 50))
			}
			h.seconds(30)
		}
		if n := len(h.allocsOf("gang")); n != 3 || h.started != 7 {
			t.Errorf("%d of the gang run, and %d were started", n, h.started)
		}
	})
}

// No room is kept for a job that has ended as a whole either, and it is not run again for it. Once it
// was stopped, the same submission is another version, for which there must be room.
func TestNoRoomIsKeptForAJobThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 4, 1, "preemption {\n min_run_time = \"0s\"\n}\n")
		shards := json.RawMessage(strings.Replace(string(slowJob("c", "shards", "0", 4, 20, "")), `"service"`, `"batch"`, 1))
		h.submit(t.Context(), shards)
		h.seconds(20)
		h.finish(h.jobs["c/shards"])
		h.seconds(20)
		for n := range 5 {
			h.submitUnchanged(t, shards)
			if n == 2 {
				h.submit(t.Context(), gangJob("gang", 4, 50))
			}
			h.seconds(30)
		}
		if n := len(h.allocsOf("gang")); n != 4 || h.started != 8 || h.again > 0 {
			t.Fatalf("%d of the gang run, %d were started, and what had ended was registered again %d times", n, h.started, h.again)
		}
		h.stop(h.jobs["c/gang"])
		h.stop(h.jobs["c/shards"])
		h.seconds(30)
		h.submit(t.Context(), shards)
		h.submit(t.Context(), gangJob("second", 4, 10)) // its turn comes later
		h.seconds(30)
		if n := len(h.allocsOf("shards")); n != 4 {
			t.Errorf("%d of what was stopped run again", n)
		}
	})
}
