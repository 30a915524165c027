// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// slowJob is a service whose allocs take a GPU each; env is what makes a new version of it.
func slowJob(namespace, id, env string, count, priority int, more string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID": %q, "Name": %q, "Namespace": %q, "Type": "service", "Priority": %d, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": %d, %s
		"Tasks": [{"Name": "t", "Driver": "docker", "Env": {"V": %q}, "Meta": {"gpu": "1"}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`, id, id, namespace, priority, count, more, env))
}

// onNode has a version of a job start elsewhere than the one before, so that both can hold GPUs.
func onNode(v int) string {
	return fmt.Sprintf(`"Constraints": [{"LTarget": "${node.unique.name}", "Operand": "=", "RTarget": "n%d"}],`, v%10)
}

// slices counts the slices that a namespace holds: each once, also where an alloc takes over those
// of one that has not ended.
func (h *modelRun) slices(namespace string) int {
	ids := map[string]bool{}
	for _, a := range h.allocs {
		if a.stub.Namespace == namespace {
			for _, d := range a.stub.AllocatedResources.Tasks["t"].Devices {
				for _, id := range d.DeviceIDs {
					ids[id] = true
				}
			}
		}
	}
	return len(ids)
}

// An update starts the new version in the place of the old one, which may take long to stop. The
// next update waits until it has ended, and after a minute so does the new version.
func TestUpdatesOfWhatStopsSlowlyKeepToTheirQueue(t *testing.T) {
	for name, c := range map[string]struct {
		takes, every int
		most         int // seconds above the limit
	}{
		"30 s to stop, an update a second":  {30, 1, 31},
		"30 s to stop, an update in 10 s":   {30, 10, 31},
		"10 h to stop, an update in 60 s":   {36000, 60, 62},
		"150 s to stop, an update in 200 s": {150, 200, 62},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 10, 2, modelConfig)
				h.stops = map[string]int{"j": c.takes}
				beside, longest := 0, 0
				for v := range 10 {
					h.submit(t.Context(), slowJob("a", "j", fmt.Sprint(v), 2, 50, onNode(v)))
					for range c.every {
						h.seconds(1)
						if n := h.slices("a"); n > 64 {
							t.Fatalf("update %d: the queue holds %d slices of 32", v, n)
						}
						// What runs beside what stops.
						if beside++; h.slices("a") <= 32 || h.runningSlices("a") == 0 {
							beside = 0
						}
						longest = max(longest, beside)
					}
				}
				if longest > c.most {
					t.Errorf("the queue had work run beside what stops for %d s, of at most %d", longest, c.most)
				}
				h.seconds(400)
				if c.takes < 300 && h.runningSlices("a") != 32 {
					t.Errorf("after all has ended, %d slices run; %s", h.runningSlices("a"), strings.Join(h.log, "\n"))
				}
			})
		})
	}
}

// runningSlices counts the slices of what does not stop.
func (h *modelRun) runningSlices(namespace string) int {
	n := 0
	for _, a := range h.allocs {
		if a.stub.Namespace == namespace && a.stopping == 0 {
			for _, d := range a.stub.AllocatedResources.Tasks["t"].Devices {
				n += len(d.DeviceIDs)
			}
		}
	}
	return n
}
