// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// in is a job in a node pool that asks for something, in a queue or in none.
func in(pool, namespace, task string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"ID": "j", "Name": "j", "Namespace": %q, "NodePool": %q, "Type": "service", "Priority": 50, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": 2,
		"Tasks": [{"Name": "t", "Driver": "docker", %s}]}]}`, namespace, pool, task))
}

// join adds a node with two GPUs to the cluster.
func (h *modelRun) join(pool, model string) {
	n := newModel(h.t, 1, 2).nodes[0]
	h.index++
	n.ID, n.Name, n.NodePool, n.ModifyIndex = "node-of-"+pool+model, pool+model, pool, h.index
	for _, d := range n.NodeResources.Devices {
		d.Name = strings.Replace(d.Name, "T4", model, 1)
		d.Attributes["type"], d.Attributes["model"] = word(model), word("NVIDIA "+model)
		for _, in := range d.Instances {
			in.ID = pool + model + in.ID
		}
	}
	h.nodes = append(h.nodes, n)
	h.tell(nomad.Change{Node: nomad.NewNode(n, nomad.Hardware{})})
	h.schedule()
}

// A job that names a pool without GPUs, or a model that is expected, waits for the first
// node, and starts there; without either it is refused. A wait begins for the quota where
// the node comes before the queue can pay.
func TestAJobWaitsForItsPoolsFirstNode(t *testing.T) {
	meta := func(ask string) string { return `"Meta": {"gpu": "` + ask + `"}, "Resources": {"CPU": 100}` }
	plain := `"Resources": {"CPU": 100, "Devices": [{"Name": "nvidia/slice", "Count": 16}]}`
	for name, c := range map[string]struct {
		pool, namespace, task string
		joins, model          string
		waits, full           bool
	}{
		"its pool is empty":                 {pool: "burst", namespace: "c", task: meta("1"), joins: "burst", model: "T4", waits: true},
		"its pool is empty, slices":         {pool: "burst", namespace: "c", task: meta("4G"), joins: "burst", model: "T4", waits: true},
		"its pool is empty, device blocks":  {pool: "burst", namespace: "c", task: plain, joins: "burst", model: "T4", waits: true},
		"its pool is empty, of a model":     {pool: "burst", namespace: "c", task: meta("1(H100)"), joins: "burst", model: "H100", waits: true},
		"its pool is empty, another joins":  {pool: "burst", namespace: "c", task: meta("1"), joins: "other", model: "T4", waits: true},
		"its pool is empty, its queue full": {pool: "burst", namespace: "a", task: meta("1"), joins: "burst", model: "T4", waits: true, full: true},
		"the model is expected":             {pool: "default", namespace: "c", task: meta("1(B200)"), joins: "default", model: "B200", waits: true},
		"nobody expects the model":          {pool: "default", namespace: "c", task: meta("1(V100)")},
		"more than the pool's nodes have":   {pool: "default", namespace: "c", task: meta("9")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newRun(t, 1, 2, modelConfig+"placement {\n expected_models = [\"b200\"]\n}\n")
				if c.full {
					h.submit(t.Context(), wholeOf("a", 1, "50"))
				}
				j, err := admit.Read([]byte(`{"Job":`+string(in(c.pool, c.namespace, c.task))+`}`), admit.Query{})
				if err != nil {
					t.Fatal(err)
				}
				d, err := h.decider.Decide(t.Context(), j.Asks, false)
				if !c.waits {
					if err == nil {
						t.Errorf("decided: %+v", d)
					}
					return
				}
				if err != nil || d[0].Hold == nil || d[0].Hold.Kind != "room" {
					t.Fatalf("%+v, %v", d, err)
				}
				body, err := j.Apply(d, admit.Link{})
				if err != nil {
					t.Fatal(err)
				}
				key := nomad.JobKey{Namespace: c.namespace, ID: "j"}
				if err := h.Register(t.Context(), key, body); err != nil {
					t.Fatal(err)
				}
				h.decider.Settle(t.Context(), j.Asks, d, true)
				for range 5 {
					h.second(t.Context())
				}
				before := h.started
				h.lead(t.Context()) // the next leader knows too
				h.join(c.joins, c.model)
				for range 20 {
					h.second(t.Context())
				}
				want := before + 2
				if c.joins != c.pool || c.full {
					want = before
				}
				if h.started != want {
					t.Errorf("%d allocs started, want %d: %v", h.started-before, want-before, constraintsOf(h.jobs[key.String()].job.TaskGroups[0]))
				}
				if c.full {
					if got := strings.Join(constraintsOf(h.jobs[key.String()].job.TaskGroups[0]), " "); !strings.Contains(got, "waits for") {
						t.Errorf("it is not held: %s", got)
					}
				}
			})
		})
	}
}
