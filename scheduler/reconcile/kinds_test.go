// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/constraint"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// meets reports whether a device group will do for a block. The service evaluates
// constraints with the same package, which TestNomadSaysTheSame holds to Nomad.
func (m *model) meets(d *api.NodeDeviceResource, b *api.RequestedDevice) bool {
	var list []constraint.Constraint
	for _, c := range b.Constraints {
		list = append(list, constraint.Constraint{Left: c.LTarget, Operand: c.Operand, Right: c.RTarget})
	}
	return m.device(d).Meets(list)
}

// prefers is the weight of the affinities of a device block that a group of devices matches.
func (m *model) prefers(d *api.NodeDeviceResource, b *api.RequestedDevice) (weight int) {
	for _, a := range b.Affinities {
		if m.device(d).Meets([]constraint.Constraint{{Left: a.LTarget, Operand: a.Operand, Right: a.RTarget}}) {
			weight += int(*a.Weight)
		}
	}
	return weight
}

func (m *model) device(d *api.NodeDeviceResource) *constraint.Device {
	known, found := m.devicesOf[d]
	if !found {
		n := nomad.NewNode(&api.Node{ID: "x", NodeResources: &api.NodeResources{Devices: []*api.NodeDeviceResource{d}}}, nomad.Hardware{})
		known = n.Plan.GPUs[0].Device
		m.devicesOf[d] = known
	}
	return known
}

// placeEverywhere starts a system job on every node that may take it, and ends it where
// its tasks are others now, or the node is left out.
func (m *model) placeEverywhere(j *modelJob, g *api.TaskGroup, wanted bool) (missing int) {
	on := map[string]bool{}
	for _, a := range m.allocs {
		if a.stub.JobID != j.key.ID || a.stub.Namespace != j.key.Namespace || a.stopping > 0 {
			continue
		}
		if !wanted || a.spec != specOf(g) || !admitted(g, m.node(a.stub.NodeID)) {
			m.end(a)
			continue
		}
		on[a.stub.NodeID] = true
	}
	for _, n := range m.nodes {
		if wanted && !on[n.ID] && n.SchedulingEligibility == "eligible" && admitted(g, n) && !m.startOn(n, j, g, false, nil) {
			missing++
		}
	}
	return missing
}

// conditions has every operator that Nomad knows, on what the model's devices have.
var conditions = []string{
	``, `"${device.attr.memory}", "Operand": ">=", "RTarget": "10 GiB"`, `"${device.attr.memory}", "Operand": ">", "RTarget": "20000 MiB"`,
	`"${device.attr.memory}", "Operand": "<", "RTarget": "100 GiB"`, `"${device.attr.memory}", "Operand": "<=", "RTarget": "16 GiB"`,
	`"${device.vendor}", "Operand": "=", "RTarget": "nvidia"`, `"${device.vendor}", "Operand": "!=", "RTarget": "nvidia"`,
	`"${device.model}", "Operand": "regexp", "RTarget": "T4/.*"`, `"${device.attr.type}", "Operand": "set_contains", "RTarget": "T4"`,
	`"${device.attr.type}", "Operand": "set_contains_all", "RTarget": "T4,H100"`, `"${device.attr.type}", "Operand": "set_contains_any", "RTarget": "T4,H100"`,
	`"${device.attr.slices}", "Operand": "is_set", "RTarget": ""`, `"${device.attr.none}", "Operand": "is_not_set", "RTarget": ""`,
	`"${device.attr.sharing}", "Operand": "version", "RTarget": ">= 1"`, `"${device.attr.sharing}", "Operand": "semver", "RTarget": ">= 1.0.0"`,
}

// anyKind is a job of any type, asking in meta or with its author's own device block.
func (h *modelRun) anyKind() json.RawMessage {
	kind := []string{"service", "batch", "system", "sysbatch"}[h.rng.IntN(4)]
	resources, meta := `"CPU": 100, "MemoryMB": 100`, `"gpu": "`+[]string{"1", "4G", "8G", "0.5"}[h.rng.IntN(4)]+`"`
	if h.rng.IntN(2) == 0 {
		constraints := ""
		if c := conditions[h.rng.IntN(len(conditions))]; c != "" {
			constraints = `, "Constraints": [{"LTarget": ` + c + `}]`
		}
		meta, resources = "", fmt.Sprintf(`%s, "Devices": [{"Name": "nvidia/slice", "Count": %d%s}]`, resources, 1+h.rng.IntN(16), constraints)
	}
	count, starts := 1+h.rng.IntN(3), ""
	if kind == "system" || kind == "sysbatch" {
		count = 1
	}
	switch id := fmt.Sprintf("k%d", h.rng.IntN(6)); {
	case kind == "batch" && h.rng.IntN(3) == 0:
		starts = `"ParameterizedJob": {}, `
		fallthrough
	default:
		return json.RawMessage(fmt.Sprintf(`{%s"ID": %q, "Name": %q, "Namespace": %q, "Type": %q, "Priority": %d, "Datacenters": ["*"], "TaskGroups": [{"Name": "g", "Count": %d,
			"Tasks": [{"Name": "t", "Driver": "docker", "Meta": {%s}, "Env": {"VERSION": "%d"}, "Resources": {%s}}]}]}`,
			starts, id, id, []string{"a", "a", "c"}[h.rng.IntN(3)], kind, 10+20*h.rng.IntN(5), count, meta, h.rng.IntN(2), resources))
	}
}

// through does one thing through the service, as its proxy does it.
func (h *modelRun) through(ctx context.Context, j *modelJob) {
	body, err := h.Read(ctx, j.key)
	if err != nil {
		h.t.Fatal(err)
	}
	registered, err := admit.Read(body, admit.Query{Namespace: j.key.Namespace})
	if err != nil || len(registered.Asks) == 0 {
		return
	}
	asks := registered.Asks
	if j.job.IsParameterized() {
		for i := range asks {
			asks[i].Later = false
		}
		d, err := h.decider.Decide(ctx, asks, true)
		if err != nil || d[0].Hold != nil {
			return // refused
		}
		h.dispatched++
		h.dispatch(j.key, fmt.Sprintf("%s/dispatch-%d", j.key.ID, h.dispatched), *j.job.Priority)
		return
	}
	if *j.job.Type != "service" && *j.job.Type != "batch" || h.waitsForPromotion(j) || j.job.Dispatched {
		return
	}
	count := h.rng.IntN(5)
	h.log = append(h.log, fmt.Sprintf("  scale %s to %d through the service", j.key, count))
	if asks[0].Count < count {
		asks[0].Count = count
		d, err := h.decider.Decide(ctx, asks, true)
		if err != nil {
			h.log = append(h.log, "  refused: "+err.Error())
			return
		}
		if d[0].Hold != nil {
			if err := h.loop.Hold(ctx, j.key.Namespace, j.key.ID, "g", *d[0].Hold); err != nil {
				h.t.Error(err)
			}
		}
	}
	h.scale(j, count)
}

// TestEveryKindOfJobKeepsToItsQueue drives jobs of every type, with every operator in
// constraints on devices, through registrations, scalings, dispatches, reverts, stops,
// nodes that close and join, lost Variables and changes of leaders: a queue with
// borrow = false is above its bound for no longer than it takes to stop what is too much,
// except by dispatched jobs, which are left as they are. NOMAD_GPU_HISTORIES says how many, or which.
func TestEveryKindOfJobKeepsToItsQueue(t *testing.T) {
	for _, seed := range histories(t, 15) {
		synctest.Test(t, func(t *testing.T) {
			h := newRun(t, 3, 2, modelConfig)
			h.rng = rand.New(rand.NewPCG(seed, 11))
			for range 40 {
				j := h.any()
				kind := h.rng.IntN(12)
				if j == nil {
					kind = 0
				}
				switch {
				case kind < 5:
					raw := h.anyKind()
					h.log = append(h.log, "  submit "+string(raw))
					h.submit(t.Context(), raw)
				case kind < 8:
					h.through(t.Context(), j)
				case kind == 8:
					h.event(t.Context())
				default:
					h.rareEvent(j, []int{14, 15, 17, 17}[kind-8])
				}
				for range 1 + h.rng.IntN(8) {
					h.second(t.Context())
				}
				if h.longest > mostAbove || t.Failed() {
					break
				}
			}
			if h.longest > mostAbove && !slices.ContainsFunc(h.allocs, func(a *modelAlloc) bool { return h.jobs[a.stub.Namespace+"/"+a.stub.JobID].job.Dispatched }) {
				t.Errorf("seed %d: queue a was above its bound for %d seconds: %s\n%s", seed, h.longest, h.running(), strings.Join(h.log, "\n"))
			}
		})
		if t.Failed() {
			return
		}
	}
}
