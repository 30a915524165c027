// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/quota"
)

// Where the shortest goes first, a GPU that comes free goes to the work that is said to run for the
// shortest time. What comes late enough passes nothing any more.
func TestTheShortestGoesFirst(t *testing.T) {
	limited := func(id, limit string) json.RawMessage {
		raw := strings.Replace(string(slowJob("c", id, "0", 1, 50, "")), `"service"`, `"batch"`, 1)
		return json.RawMessage(strings.Replace(raw, `"gpu": "1"`, fmt.Sprintf(`"gpu": "1", "gpu_time_limit": %q`, limit), 1))
	}
	for order, want := range map[string]string{"arrival": "long middle short late", "shortest": "short middle long late"} {
		t.Run(order, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 1, 1, fmt.Sprintf("fairness {\n order = %q\n}\n", order))
				h.submit(t.Context(), limited("first", "1h"))
				h.seconds(5)
				for _, one := range [][2]string{{"long", "4m"}, {"middle", "2m"}, {"short", "1m"}} {
					h.submit(t.Context(), limited(one[0], one[1]))
					h.seconds(2)
				}
				ended := "first"
				var started []string
				for i := range 4 {
					if i == 2 { // until then shorter work passes the long one
						time.Sleep(quota.Later(4 * time.Minute))
						h.seconds(2)
						h.submit(t.Context(), limited("late", "1s"))
						h.seconds(2)
					}
					h.stop(h.jobs["c/"+ended])
					h.seconds(60)
					ended = strings.TrimSpace(strings.TrimPrefix(h.running(), "c/"))
					ended, _, _ = strings.Cut(ended, " ")
					started = append(started, ended)
				}
				if got := strings.Join(started, " "); got != want {
					t.Errorf("they start in the order %s, want %s", got, want)
				}
			})
		})
	}
}
