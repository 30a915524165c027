// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// service is a service in queue a, of a version, with canaries.
func service(id, ask string, count, canaries, version int) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID": %q, "Name": %q, "Namespace": "a", "Type": "service", "Priority": 50, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": %d,
		"Update": {"Canary": %d, "MaxParallel": 1},
		"Tasks": [{"Name": "t", "Driver": "docker", "Meta": {"gpu": %q}, "Env": {"VERSION": "%d"}, "Resources": {"CPU": 100, "MemoryMB": 100}}]}]}`, id, id, count, canaries, ask, version))
}

// runsOf counts a job's allocs that run: of the old version and canaries.
func (h *modelRun) runsOf(id string) (old, canaries int) {
	for _, a := range h.allocs {
		switch {
		case a.stub.JobID != id || a.stopping > 0:
		case a.canary():
			canaries++
		default:
			old++
		}
	}
	return old, canaries
}

// Canaries run beside what they are to replace, and their queue pays for both: those that
// it cannot pay for wait, and the old version goes on.
func TestCanariesKeepToTheirQueue(t *testing.T) {
	for name, c := range map[string]struct {
		first, next   json.RawMessage
		beside        string // what else runs in the queue of two GPUs
		old, canaries int    // that run
		after         int    // canaries, when what ran beside has ended
		refused       bool
	}{
		"there is room":                   {first: service("s", "1", 1, 1, 0), next: service("s", "1", 1, 1, 1), old: 1, canaries: 1, after: 1},
		"another version":                 {first: service("s", "1", 1, 1, 0), next: service("s", "1", 1, 1, 1), beside: "1", old: 1, after: 1},
		"another request":                 {first: service("s", "1", 1, 1, 0), next: service("s", "8G", 1, 1, 0), beside: "1", old: 1, after: 1},
		"blue and green":                  {first: service("s", "8G", 2, 2, 0), next: service("s", "8G", 2, 2, 1), beside: "8G", old: 2, after: 2},
		"blue and green, another request": {first: service("s", "8G", 2, 2, 0), next: service("s", "7G", 2, 2, 0), beside: "8G", old: 2, after: 2},
		"more than the queue ever has":    {first: service("s", "1", 2, 2, 0), next: service("s", "8G", 2, 2, 0), old: 2, refused: true},
		"more, another version":           {first: service("s", "1", 2, 2, 0), next: service("s", "1", 2, 2, 1), old: 2},
		"more of them":                    {first: service("s", "8G", 2, 1, 0), next: service("s", "7G", 3, 1, 0), beside: "8G", old: 2, canaries: 1, after: 1},
		"without canaries":                {first: service("s", "1", 1, 0, 0), next: service("s", "2", 1, 0, 0), beside: "1", old: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 3, 2, modelConfig)
				h.submit(t.Context(), c.first)
				if c.beside != "" {
					h.submit(t.Context(), service("beside", c.beside, 1, 0, 0))
				}
				for range 5 {
					h.second(t.Context())
				}
				h.submit(t.Context(), c.next)
				if refused := strings.Contains(strings.Join(h.log, "\n"), "refused"); refused != c.refused {
					t.Errorf("refused %v, want %v: %v", refused, c.refused, h.log)
				}
				for range 60 {
					h.second(t.Context())
				}
				if old, canaries := h.runsOf("s"); old != c.old || canaries != c.canaries {
					t.Errorf("%d of the old version and %d canaries run, want %d and %d", old, canaries, c.old, c.canaries)
				}
				if h.longest > mostAbove {
					t.Errorf("queue a was above its bound for %d seconds", h.longest)
				}
				before := h.started
				for range 60 {
					h.second(t.Context())
				}
				if h.started != before {
					t.Errorf("%d allocs were started although nothing happened", h.started-before)
				}
				if c.beside == "" {
					return
				}
				h.stop(h.jobs["a/beside"])
				for range 60 {
					h.second(t.Context())
				}
				if old, canaries := h.runsOf("s"); old != c.old || canaries != c.after {
					t.Errorf("with room: %d of the old version and %d canaries run, want %d and %d; %v", old, canaries, c.old, c.after, constraintsOf(h.jobs["a/s"].job.TaskGroups[0]))
				}
				h.promote(h.jobs["a/s"])
				for range 30 {
					h.second(t.Context())
				}
				old, canaries := h.runsOf("s")
				if want := *h.jobs["a/s"].job.TaskGroups[0].Count; old != want || canaries != 0 || len(h.jobs["a/s"].blocked) > 0 || h.longest > mostAbove {
					t.Errorf("promoted: %d run, %d as canaries, want %d; %v; above for %d s", old, canaries, want, h.jobs["a/s"].blocked, h.longest)
				}
			})
		})
	}
}
