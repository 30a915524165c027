// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// A job that was stopped, and is started again around the service as the service once
// registered it, was admitted for room of its queue that is taken by now.
func TestAStoppedJobStartedAgainAroundTheServiceIsBroughtBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 3, 2, modelConfig)
		h.submit(t.Context(), service("first", "1", 2, 0, 0))
		h.second(t.Context())
		j := h.jobs["a/first"]
		h.stop(j)
		for range 5 {
			h.second(t.Context())
		}
		h.submit(t.Context(), service("second", "1", 2, 0, 0))
		for range 200 {
			h.second(t.Context())
		}
		h.register(j.versions[0])
		for range 30 {
			h.second(t.Context())
		}
		if h.longest > mostAbove {
			t.Errorf("queue a was above its bound for %d seconds", h.longest)
		}
		if first, _ := h.runsOf("first"); first != 0 {
			t.Errorf("%d of what was started again run", first)
		}
		h.stop(h.jobs["a/second"])
		for range 30 {
			h.second(t.Context())
		}
		if first, _ := h.runsOf("first"); first != 2 {
			t.Errorf("%d of what was started again run when there is room, want 2", first)
		}
	})
}

// What is too much goes at once, however many jobs it is: the queue was above its bound for
// as long as all of them took to stop, one after the other.
func TestManyJobsAreBroughtBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 6, 2, modelConfig)
		for i := range 12 {
			h.register(json.RawMessage(strings.Replace(string(service(fmt.Sprintf("direct-%d", i), "1", 1, 0, 0)), `"Meta": {"gpu": "1"}, "Env": {"VERSION": "0"}, "Resources": {`, `"Resources": {"Devices": [{"Name": "nvidia/slice", "Count": 16}], `, 1)))
		}
		if h.used("a") != 12*16 {
			t.Fatalf("%d slices are held", h.used("a"))
		}
		for range 30 {
			h.second(t.Context())
		}
		if h.longest > mostAbove || h.used("a") != 32 {
			t.Errorf("queue a was above its bound for %d seconds, and holds %d slices", h.longest, h.used("a"))
		}
	})
}
