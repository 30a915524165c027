// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"testing"

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
