// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// twoGroups is a gang of two groups, which have so many allocs of a whole GPU each.
func twoGroups(namespace string, g, h int) json.RawMessage {
	group := func(name string, count int) string {
		return fmt.Sprintf(`{"Name": %q, "Count": %d, "Tasks": [{"Name": "t", "Driver": "docker", "Meta": {"gpu": "1", "gpu_gang": "true"}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}`, name, count)
	}
	return json.RawMessage(fmt.Sprintf(`{"ID": "gang", "Name": "gang", "Namespace": %q, "Type": "batch", "Priority": 50, "Datacenters": ["*"], "TaskGroups": [%s, %s]}`, namespace, group("g", g), group("h", h)))
}

// scaleGroup scales one group from zero through the service, as its proxy does it.
func (h *modelRun) scaleGroup(t *testing.T, key nomad.JobKey, group string, count int) (held bool) {
	t.Helper()
	body, err := h.Read(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	registered, err := admit.Read(body, admit.Query{Namespace: key.Namespace})
	if err != nil {
		t.Fatal(err)
	}
	asks := registered.Asks
	for i := range asks {
		if asks[i].Group == group {
			asks[i].Count = count
			asks[0], asks[i] = asks[i], asks[0]
		}
	}
	d, err := h.decider.Decide(t.Context(), asks, true)
	if err != nil {
		t.Fatal(err)
	}
	if held = d[0].Hold != nil; held {
		if err := h.loop.Hold(t.Context(), key.Namespace, key.ID, group, *d[0].Hold); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := json.Marshal(h.jobs[key.String()].job)
	if err != nil {
		t.Fatal(err)
	}
	var job map[string]any
	if err := json.Unmarshal(raw, &job); err != nil {
		t.Fatal(err)
	}
	for _, one := range job["TaskGroups"].([]any) {
		if g := one.(map[string]any); g["Name"] == group {
			g["Count"] = count
		}
	}
	if raw, err = json.Marshal(job); err != nil {
		t.Fatal(err)
	}
	h.register(raw)
	return held
}

// TestAGangOfSeveralGroupsIsScaledFromZero: each group waits with those that wait already,
// and all start together, in the same second.
func TestAGangOfSeveralGroupsIsScaledFromZero(t *testing.T) {
	for name, lead := range map[string]bool{"one leader": false, "another leader each time": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 3, 2, modelConfig)
				h.submit(t.Context(), wholeOf("a", 1, "50"))
				h.submit(t.Context(), twoGroups("a", 0, 0))
				pass := func(seconds int) {
					for range seconds {
						h.second(t.Context())
					}
				}
				key := nomad.JobKey{Namespace: "a", ID: "gang"}
				gang := func() map[string]int {
					running := map[string]int{}
					for _, a := range h.allocs {
						if a.stub.JobID == key.ID && a.stopping == 0 {
							running[a.stub.TaskGroup]++
						}
					}
					return running
				}
				pass(5)
				if !h.scaleGroup(t, key, "g", 2) {
					t.Fatal("g does not wait, and half of the queue is held")
				}
				if lead {
					h.lead(t.Context())
				}
				pass(40)
				if n := gang(); len(n) != 0 {
					t.Fatalf("%v run while half of the queue is held", n)
				}
				h.stop(h.jobs["a/j1"])
				pass(40)
				if n := gang(); n["g"] != 2 || n["h"] != 0 {
					t.Errorf("with the whole queue free %v run", n)
				}
				h.stop(h.jobs[key.String()])
				pass(40)

				h.submit(t.Context(), wholeOf("a", 1, "50"))
				h.submit(t.Context(), twoGroups("a", 0, 0))
				pass(5)
				h.submit(t.Context(), wholeOf("a", 3, "50"))
				pass(5)
				for _, group := range []string{"g", "h"} {
					if !h.scaleGroup(t, key, group, 1) {
						t.Errorf("%s does not wait, and the queue is full", group)
					}
					if lead {
						h.lead(t.Context())
					}
					pass(5)
				}
				h.stop(h.jobs["a/j1"])
				pass(40)
				if n := gang(); len(n) != 0 {
					t.Fatalf("with room for one of two, %v run", n)
				}
				h.stop(h.jobs["a/j3"])
				for range 40 {
					h.second(t.Context())
					if n := gang(); n["g"] != n["h"] {
						t.Fatalf("%v run", n)
					}
				}
				if n := gang(); n["g"] != 1 || n["h"] != 1 {
					t.Errorf("with room for both, %v run", n)
				}
			})
		})
	}
}

// TestAGroupThatWouldFitAloneWaitsForItsGang, also where it is scaled last.
func TestAGroupThatWouldFitAloneWaitsForItsGang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRun(t, 3, 2, modelConfig)
		for i := range 4 {
			h.submit(t.Context(), wholeOf("c", i, "50"))
		}
		h.submit(t.Context(), twoGroups("c", 0, 0))
		key := nomad.JobKey{Namespace: "c", ID: "gang"}
		for _, to := range []struct {
			group string
			count int
		}{{"g", 3}, {"h", 1}} {
			if !h.scaleGroup(t, key, to.group, to.count) {
				t.Errorf("group %s is not held, and there is no room for the gang", to.group)
			}
			for range 20 {
				h.second(t.Context())
			}
			if len(h.allocs) != 4 {
				t.Errorf("with group %s scaled, %d allocs run beside the four", to.group, len(h.allocs)-4)
			}
		}
		h.stop(h.jobs["c/j1"])
		h.stop(h.jobs["c/j2"])
		for range 60 {
			h.second(t.Context())
		}
		if len(h.allocs) != 6 {
			t.Errorf("%d allocs run, want all four of the gang beside two others", len(h.allocs))
		}
	})
}
