// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
)

// A batch job that made room for another and has ended since is not given its node back: Nomad
// would run the new version of it from the start.
func TestABatchJobThatHasEndedDoesNotRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 3, 1, "preemption {\n min_run_time = \"0s\"\n}\n")
		h.stops = map[string]int{"slow": 60}
		batch := func(id string, priority int) json.RawMessage {
			return json.RawMessage(strings.Replace(string(slowJob("c", id, "0", 1, priority, "")), `"service"`, `"batch"`, 1))
		}
		h.submit(t.Context(), batch("low", 20))
		h.submit(t.Context(), batch("slow", 20))
		h.submit(t.Context(), batch("other", 95))
		h.seconds(5)
		h.submit(t.Context(), gangJob("gang", 2, 90))
		h.seconds(10)
		h.stop(h.jobs["c/other"])
		h.seconds(10)
		h.finish(h.jobs["c/low"])
		if !h.jobs["c/low"].ended {
			t.Fatalf("what was evicted does not run elsewhere:\n%s", strings.Join(h.log, "\n"))
		}
		h.seconds(300)
		if h.again > 0 || !strings.Contains(h.running(), "c/gang") {
			t.Errorf("it was registered again %d times, and %q runs:\n%s", h.again, h.running(), strings.Join(h.log, "\n"))
		}
		// Its owner has it run again, wherever there is room.
		h.stop(h.jobs["c/gang"])
		h.seconds(5)
		h.submit(t.Context(), batch("low", 30))
		h.seconds(5)
		if !strings.Contains(h.running(), "c/low") {
			t.Errorf("submitted again it does not run: %q", h.running())
		}
	})
}
