// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A node pool that is scaled from zero has no node until work waits for one. What
// names such a pool, or a model that the operator expects, is not refused because
// nothing there could hold it: it waits until a node joins.

// defaultPool is the pool of jobs that name none. Where it has no GPUs, they are refused:
// their author forgot to name one.
const defaultPool = "default"

// awaited is the hold of a group that was refused because no node could ever hold it,
// where a node that could may join; nil where none is expected.
func awaited(a groupAsk, refused error) *admit.Hold {
	var refusal *admit.Refusal
	if !errors.As(refused, &refusal) || refusal.Status != http.StatusUnprocessableEntity || !places(a.ask) {
		return nil
	}
	if madeByDemand(a) {
		return waitsForNode("no GPU is cut into instances as it asks for yet")
	}
	r := &a.parts[0].Req
	if len(r.Pools) > 0 && !slices.Contains(r.Pools, defaultPool) && !anyGPU(a.tx, func(n *place.Node, _ *place.GPU) bool { return slices.Contains(r.Pools, n.Pool) }) {
		return waitsForNode("node pool %s has no node with GPUs yet", strings.Join(r.Pools, " or "))
	}
	for i := range a.parts {
		if model := expected(a.tx, a.parts[i].Req.Models); model != "" {
			return waitsForNode("no node with GPUs of model %s has joined yet", model)
		}
	}
	return nil
}

func waitsForNode(format string, args ...any) *admit.Hold {
	return &admit.Hold{Kind: view.WaitsForRoom, Sentence: fmt.Sprintf(format, args...)}
}

// anyGPU reports whether the cluster has a GPU that satisfies a condition.
func anyGPU(tx *state.Tx, is func(*place.Node, *place.GPU) bool) bool {
	for _, id := range tx.Cluster.NodeIDs() {
		n := &tx.Cluster.Node(id).Plan
		for i := range n.GPUs {
			if is(n, &n.GPUs[i]) {
				return true
			}
		}
	}
	return false
}

// expected is the first of some models that the operator expects and that no GPU of the
// cluster is of; empty: there is none.
func expected(tx *state.Tx, models []string) string {
	for _, model := range models {
		known := func(_ *place.Node, g *place.GPU) bool { return g.Is(model) }
		if slices.ContainsFunc(tx.Config().ExpectedModels, func(e string) bool { return strings.EqualFold(e, model) }) && !anyGPU(tx, known) {
			return model
		}
	}
	return ""
}

// heldUntilOneJoins is the answer to a group for which there is no node yet. Which device
// blocks it takes is seen when there is one; those that it waits with keep it from
// running without a GPU if its hold is taken away by hand.
func heldUntilOneJoins(a groupAsk, hold *admit.Hold) record.Group {
	g := a.unmanaged()
	g.Decision.Bounds, g.Cost = blocks.Bounds(a.queue), leastCost(a.tx, a.parts)
	for _, one := range a.parts {
		if a.ask.Tasks[one.Task].Plain() {
			continue
		}
		name := cmp.Or(one.Req.Vendor, "nvidia") + "/" + gpu.TypeSlice
		if one.Req.Profile != "" {
			name = cmp.Or(one.Req.Vendor, "nvidia") + "/" + gpu.TypeMIG + "/" + one.Req.Profile
		} else if one.Req.Whole {
			name = cmp.Or(one.Req.Vendor, "nvidia") + "/" + "gpu"
		}
		t := &g.Decision.Tasks[one.Task]
		t.Devices = append(t.Devices, admit.Device{Name: name, Count: int64(max(1, one.Req.GPUs))})
	}
	markHeld(&g, hold)
	return g
}
