// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// shown starts what people see of a decision.
func (a groupAsk) shown(outcome, summary string) view.Decision {
	v := view.Decision{
		At: a.tx.Now(), Namespace: a.key.Namespace, JobID: a.key.ID, Group: a.ask.Group,
		Priority: a.ask.Priority, Ask: a.ask.String(), Policy: a.ask.Policy, Outcome: outcome,
	}
	if v.Policy == "" {
		v.Policy = a.tx.Config().Placement.Policy.String()
	}
	if a.queue != nil {
		v.Queue = a.queue.Name
	}
	v.Summary = summary
	return v
}

// choice is a placed alloc for people, with what the core knows of its node.
func choice(tx *state.Tx, u *blocks.Placed, candidates []place.Candidate) view.Choice {
	n := tx.Cluster.Node(u.Node)
	out := view.Choice{NodeID: u.Node, NodeName: n.Plan.Name, Score: u.Score}
	for _, candidate := range candidates {
		if candidate.NodeID == u.Node {
			weighed(&out, &candidate)
			out.Why = leftWhole(&out)
		}
	}
	for _, t := range u.Usage.Takes {
		out.GPUs = append(out.GPUs, n.Plan.GPUs[t.GPU].ID)
		out.Groups = append(out.Groups, n.View.GPUs[t.GPU].Group)
	}
	return out
}

// explain writes down the core's explanation.
func explain(tx *state.Tx, g *record.Group, core *place.Explanation) {
	v := &g.Shown
	v.Fits = core.Fits
	for _, why := range core.Reasons {
		r := view.Reason{Nodes: why.Nodes, Why: why.Why, Never: why.Never}
		if tx.Config().Preemption.Enabled {
			r.Preempted = why.Preempted
		}
		v.Reasons = append(v.Reasons, r)
	}
	for _, other := range core.Candidates {
		if n := tx.Cluster.Node(other.NodeID); n != nil && !chosen(v.Choices, other.NodeID) {
			next := view.Choice{NodeID: other.NodeID, NodeName: n.Plan.Name, Score: other.Score}
			weighed(&next, &other)
			if len(v.Choices) > 0 {
				next.Why = against(&next, &v.Choices[0])
			}
			v.RunnersUp = append(v.RunnersUp, next)
		}
	}
	g.Decision.Explanation = nil
	if len(v.Choices) > 0 {
		v.Summary = placedText(v.Choices)
		g.Decision.Explanation = []string{v.Summary}
	}
	for _, other := range v.RunnersUp {
		g.Decision.Explanation = append(g.Decision.Explanation, nextBest(&other))
	}
	for _, why := range v.Reasons {
		g.Decision.Explanation = append(g.Decision.Explanation, place.Reason{Nodes: why.Nodes, Why: why.Why, Preempted: why.Preempted}.String())
	}
}

// behindFirst says which models had no room for allocs that went to one which the
// request names behind them; empty where all have the first.
func behindFirst(tx *state.Tx, parts []blocks.Part, units []blocks.Placed) string {
	for _, u := range units {
		n := tx.Cluster.Node(u.Node)
		for k, part := range parts {
			if !part.Req.Ordered {
				continue
			}
			g := &n.Plan.GPUs[u.Each[k].Takes[0].GPU]
			at := slices.IndexFunc(part.Req.Models, g.Is)
			if at > 0 {
				return fmt.Sprintf("there is no room for it on %s, before %s in its order", strings.Join(part.Req.Models[:at], ", "), part.Req.Models[at])
			}
		}
	}
	return ""
}

func chosen(choices []view.Choice, node string) bool {
	return slices.ContainsFunc(choices, func(c view.Choice) bool { return c.NodeID == node })
}

func placedText(choices []view.Choice) string {
	var parts []string
	for _, c := range choices {
		parts = append(parts, fmt.Sprintf("%s (%s)", c.NodeName, strings.Join(c.Groups, " + ")))
		if len(parts) == 4 && len(choices) > 5 {
			parts = append(parts, fmt.Sprintf("%d more", len(choices)-4))
			break
		}
	}
	text := "goes to " + strings.Join(parts, ", ")
	if len(choices) == 1 && choices[0].Why != "" {
		text += ": " + choices[0].Why
	}
	return text
}
