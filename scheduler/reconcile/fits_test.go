// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/nomad-gpu/nomad-gpu/scheduler/show"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// TestTheLoopSaysWhatWouldStartNow: people see it soon after a job began to wait, and
// something else once the room has changed. It is not worked out again while nothing changes.
func TestTheLoopSaysWhatWouldStartNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 1, 1, "")
		job := func(id, request string) json.RawMessage {
			return json.RawMessage(`{"ID":"` + id + `","Name":"` + id + `","Namespace":"default","Type":"service","Priority":50,"Datacenters":["*"],"TaskGroups":[{"Name":"g","Count":1,"Tasks":[
				{"Name":"t","Driver":"docker","Meta":{"gpu":"` + request + `"},"Resources":{"CPU":100,"MemoryMB":100}}]}]}`)
		}
		told := func(seconds int) *view.Fits {
			for range seconds {
				h.second(t.Context())
			}
			var c *view.Cluster
			var err error
			h.believed.View(func(r *state.Reader) { c, err = show.Cluster(r) })
			if err != nil || len(c.Pending) != 1 {
				t.Fatalf("%+v, %v", c, err)
			}
			return c.Pending[0].Fits
		}
		h.submit(t.Context(), job("first", "10G"))
		h.second(t.Context())
		h.submit(t.Context(), job("second", "12G"))
		f := told(20)
		if f == nil || f.Text() != "6G would start now on 1 node" {
			t.Errorf("it is said %+v", f)
		}
		if again := told(60); again != f {
			t.Error("it was worked out again although nothing has changed")
		}
		h.submit(t.Context(), job("third", "2G"))
		if f := told(20); f == nil || f.Text() != "4G would start now on 1 node" {
			t.Errorf("with less room it is said %+v", f)
		}
	})
}
