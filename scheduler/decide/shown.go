package decide

import (
	"fmt"
	"slices"
	"strconv"
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
	for _, candidate := range c.why.Candidates {
		if candidate.NodeID == u.node {
			out.Terms = terms(candidate)
		}
	}
	for _, t := range u.usage.Takes {
		out.GPUs = append(out.GPUs, n.Plan.GPUs[t.GPU].ID)
		out.Groups = append(out.Groups, n.View.GPUs[t.GPU].Group)
	}
	return out
}

// explain writes down the core's explanation.
func (c *choosing) explain(g *GroupRecord) {
	v := &g.Shown
	v.Fits = c.why.Fits
	for _, why := range c.why.Reasons {
		r := view.Reason{Nodes: why.Nodes, Why: why.Why, Never: why.Never}
		if c.book.config.Preemption.Enabled {
			r.Preempted = why.Preempted
		}
		v.Reasons = append(v.Reasons, r)
	}
	for _, other := range c.why.Candidates {
		if n := c.book.nodes[other.NodeID]; n != nil && !chosen(v.Choices, other.NodeID) {
			v.RunnersUp = append(v.RunnersUp, view.Choice{NodeID: other.NodeID, NodeName: n.Plan.Name, Score: other.Score, Terms: terms(other)})
		}
	}
	g.Decision.Explanation = nil
	if len(v.Choices) > 0 {
		v.Summary = placedText(v.Choices)
		g.Decision.Explanation = []string{v.Summary}
	}
	for _, other := range v.RunnersUp {
		g.Decision.Explanation = append(g.Decision.Explanation, fmt.Sprintf("next best: %s, score %s", other.NodeName, scoreText(other.Score)))
	}
	for _, why := range v.Reasons {
		g.Decision.Explanation = append(g.Decision.Explanation, place.Reason{Nodes: why.Nodes, Why: why.Why, Preempted: why.Preempted}.String())
	}
}

func chosen(choices []view.Choice, node string) bool {
	return slices.ContainsFunc(choices, func(c view.Choice) bool { return c.NodeID == node })
}

// terms are the parts of a candidate's score.
func terms(c place.Candidate) []view.Term {
	var list []view.Term
	for _, t := range c.Terms {
		list = append(list, view.Term{Name: t.Name, Weight: t.WeightMilli, Value: t.ValueMilli})
	}
	return list
}

// scoreText writes a score, which is in thousandths, as the page does.
func scoreText(milli int64) string { return strconv.FormatFloat(float64(milli)/1000, 'f', -1, 64) }

func placedText(choices []view.Choice) string {
	var parts []string
	for _, c := range choices {
		parts = append(parts, fmt.Sprintf("%s (%s, score %s)", c.NodeName, strings.Join(c.Groups, " + "), scoreText(c.Score)))
		if len(parts) == 4 && len(choices) > 5 {
			parts = append(parts, fmt.Sprintf("%d more", len(choices)-4))
			break
		}
	}
	return "goes to " + strings.Join(parts, ", ")
}
