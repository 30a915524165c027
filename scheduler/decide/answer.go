// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// settle writes down where the allocs go.
func (d *decider) settle(g record.Group, units []blocks.Placed) record.Group {
	tx := d.tx
	model := d.form
	if len(units) > 0 {
		model = units[0]
	}
	if d.given != nil {
		g.Decision.Tasks = d.given
	} else {
		g.Decision.Tasks = blocks.Tasks(tx, d.ask, d.parts, model)
		blocks.KeepClose(tx, g.Decision.Tasks, d.ask, d.parts, units)
		g.Covered = covered(d.parts)
		if len(units) != 1 || d.ask.Count != 1 {
			unpin(&g) // one preference cannot be right for several allocs
		}
	}
	g.Decision.Preferred = nil
	for _, u := range units {
		if !slices.Contains(g.Decision.Preferred, u.Node) {
			g.Decision.Preferred = append(g.Decision.Preferred, u.Node)
		}
		g.Assumed = append(g.Assumed, u.Usage)
	}
	if d.trial {
		return g
	}
	g.Decision.Bounds = blocks.Bounds(d.queue)
	narrow(tx, &g)
	g.Shown = d.shown(view.Placed, "")
	for _, u := range units {
		g.Shown.Choices = append(g.Shown.Choices, choice(tx, &u, d.why.Candidates))
	}
	explain(tx, &g, &d.why)
	g.Decision.Explanation = append(g.Decision.Explanation, seatTexts(tx, units)...)
	if text := behindFirst(tx, d.parts, units); text != "" {
		g.Shown.Summary += "; " + text
		g.Decision.Explanation[0] = g.Shown.Summary
	}
	g.Decision.Explanation = append(g.Decision.Explanation, tooSmall(tx, d.ask, units)...)
	if blocks.NomadChooses(d.ask) && beyond(tx, model) {
		g.Decision.Explanation = append(g.Decision.Explanation, unpinned)
	}
	return g
}

// unpinned warns of what Nomad, which counts slices and knows of no compute,
// may do to several allocs of a group whose device blocks are older than its
// count, and stay as they are since new ones would replace what runs.
const unpinned = "with a count above 1 the GPU of each alloc is Nomad's choice, and the device blocks are from when " +
	"the count was 1: where several share one, compute beyond the memory's proportion may be refused on the node; " +
	"stop the job and submit it again to have it hold the slices for its compute"

// beyond reports whether an alloc is promised more compute than its slices
// hold together.
func beyond(tx *state.Tx, u blocks.Placed) bool {
	n := tx.Cluster.Node(u.Node)
	return slices.ContainsFunc(u.Usage.Takes, func(t place.Take) bool {
		g := &n.Plan.GPUs[t.GPU]
		return g.Mode == gpu.ModeSlice && t.Slices > 0 && g.Slices/t.Slices*t.Milli > gpu.MilliPerGPU
	})
}

// tooSmall warns of limits that only some GPUs hold, of shares in which no program starts, and of compute that was asked for and
// is less than programs get, each text once.
func tooSmall(tx *state.Tx, ask *admit.Ask, units []blocks.Placed) []string {
	var texts []string
	asked := int64(0)
	for _, t := range ask.Tasks {
		if t.LimitMilli > 0 && t.Driver != gpu.DriverName {
			texts = append(texts, fmt.Sprintf("%s of task %q is held where MPS has protocol 3; elsewhere the limit of a task of driver %q is its guarantee", admit.KeyLimit, t.Task, t.Driver))
		}
		for _, milli := range []int64{t.Request.Milli, t.ComputeMilli, t.LimitMilli} {
			if milli > 0 && (asked == 0 || milli < asked) {
				asked = milli
			}
		}
	}
	for _, u := range units {
		for _, t := range u.Usage.Takes {
			g := &tx.Cluster.Node(u.Node).Plan.GPUs[t.GPU]
			text := gpu.TooSmallForMPS(g.Vendor, g.Sharing, t.Slices*g.SliceMiB)
			for _, text := range []string{text, gpu.TooLittleCompute(g.Type, g.Sharing, asked)} {
				if text != "" && g.Mode == gpu.ModeSlice && t.Slices > 0 && !slices.Contains(texts, text) {
					texts = append(texts, text)
				}
			}
		}
	}
	return texts
}

// unpin removes the preferred GPU, which belongs to no particular alloc.
func unpin(g *record.Group) {
	for i := range g.Decision.Tasks {
		for k := range g.Decision.Tasks[i].Devices {
			g.Decision.Tasks[i].Devices[k].Prefer = ""
		}
	}
}

// held is the answer to a group that must wait.
func (d *decider) held(g record.Group, hold *admit.Hold) record.Group {
	g = d.settle(g, nil)
	markHeld(&g, hold)
	return g
}

func markHeld(g *record.Group, hold *admit.Hold) {
	g.Decision.Hold, g.Decision.Outcome = hold, view.Held
	g.Shown.Choices = nil
	g.Shown.Outcome, g.Shown.Summary = view.Held, "waits for "+hold.Kind+": "+hold.Sentence
	g.Decision.Explanation = []string{g.Shown.Summary}
}

// waitForRoom explains that some allocs find no room yet. Nomad queues them and
// starts them when room returns, with the service or without it.
func waitForRoom(g *record.Group, missing, of int) {
	text := fmt.Sprintf("%d of %d allocs wait for room", missing, of)
	g.Shown.Outcome, g.Shown.Summary = view.Waits, text
	g.Decision.Explanation = append([]string{text}, g.Decision.Explanation...)
}

// outcome is what comes of an answer, beside the allocs that go on running.
func outcome(a groupAsk, g *record.Group, running int) string {
	switch {
	case g.Decision.Hold != nil:
		return view.Held
	case !places(a.ask):
		return view.Registered
	case a.ask.Count-running > a.tx.Capacity.Assumed(a.key, a.ask.Group):
		return view.Waits
	}
	return view.Placed
}

// stored is an ask as it is recorded: what an earlier admission left in the
// job is not part of it.
func stored(ask *admit.Ask) admit.Ask {
	a := *ask
	a.Was = nil
	return a
}

// otherJob names another job to the owner of this one, who may not see what runs
// in other namespaces.
func otherJob(own, other nomad.JobKey) string {
	if other.Namespace == own.Namespace {
		return "job " + other.ID
	}
	return "a job of another namespace"
}
