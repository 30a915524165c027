package decide

import (
	"fmt"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// shown starts what people see of a decision.
func (c *choosing) shown(outcome, summary string) view.Decision {
	v := view.Decision{
		At: c.book.now(), Namespace: c.key.Namespace, JobID: c.key.ID, Group: c.ask.Group,
		Priority: c.ask.Priority, Ask: c.ask.String(), Policy: c.ask.Policy, Outcome: outcome,
	}
	if v.Policy == "" {
		v.Policy = c.book.config.Placement.Policy.String()
	}
	if c.queue != nil {
		v.Queue = c.queue.Name
	}
	v.Summary = summary
	return v
}

// choice is a placed alloc for people.
func (c *choosing) choice(u unit) view.Choice {
	n := c.book.nodes[u.node]
	out := view.Choice{NodeID: u.node, NodeName: n.Plan.Name, Score: u.score}
	for _, t := range u.usage.Takes {
		out.GPUs = append(out.GPUs, n.Plan.GPUs[t.GPU].ID)
		out.Groups = append(out.Groups, n.View.GPUs[t.GPU].Group)
	}
	return out
}

// explain says why, after the flights of the group were booked.
func (c *choosing) explain(g *GroupRecord) {
	v := &g.Shown
	if e, err := c.book.plan.Explain(&c.parts[0].req); err == nil {
		v.Fits = e.Fits
		for _, why := range e.Reasons {
			v.Reasons = append(v.Reasons, view.Reason{Nodes: why.Nodes, Why: why.Why, Never: why.Never})
		}
	}
	if len(v.Choices) > 0 {
		v.Summary = placedText(v.Choices)
		g.Decision.Explanation = append(g.Decision.Explanation[:0:0], v.Summary)
	}
	for _, why := range v.Reasons {
		g.Decision.Explanation = append(g.Decision.Explanation, fmt.Sprintf("%s: %s", nodes(why.Nodes), why.Why))
	}
}

func placedText(choices []view.Choice) string {
	var parts []string
	for _, c := range choices {
		parts = append(parts, fmt.Sprintf("%s (%s, score %d)", c.NodeName, strings.Join(c.Groups, " + "), c.Score))
		if len(parts) == 4 && len(choices) > 5 {
			parts = append(parts, fmt.Sprintf("%d more", len(choices)-4))
			break
		}
	}
	return "goes to " + strings.Join(parts, ", ")
}

// reasonText is why there is no room, in a sentence.
func reasonText(e place.Explanation) string {
	var parts []string
	for _, why := range e.Reasons {
		parts = append(parts, fmt.Sprintf("%s: %s", nodes(why.Nodes), why.Why))
	}
	return strings.Join(parts, "; ")
}
