// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"strconv"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Scores compare nodes and mean nothing to people. What people read is in GPUs and percent:
// what a node has left, and what decided between it and the next one.

// weighed writes down what the core knows of a node.
func weighed(v *view.Choice, c *place.Candidate) {
	v.LostMilli, v.Whole, v.WholeNow = c.LostMilli, c.Whole, c.WholeNow
	for _, t := range c.Terms {
		v.Terms = append(v.Terms, view.Term{Name: t.Name, Weight: t.WeightMilli, Value: t.ValueMilli})
	}
}

// leftWhole says what of a node stays free for work that needs whole GPUs.
func leftWhole(c *view.Choice) string {
	switch {
	case c.WholeNow == 0:
		return "no GPU there is free as a whole, so none is broken up"
	case c.Whole == c.WholeNow && c.Whole == 1:
		return "the whole GPU there stays free"
	case c.Whole == c.WholeNow:
		return fmt.Sprintf("all %d whole GPUs there stay free", c.Whole)
	}
	return fmt.Sprintf("%d of %d whole GPUs there stay free", c.Whole, c.WholeNow)
}

// against says why a node was not chosen: what decided most between it and the one that was
// chosen, and the weight of that in the configuration.
func against(c, chosen *view.Choice) string {
	switch {
	case len(c.Terms) == 0 || len(c.Terms) != len(chosen.Terms):
		return ""
	case c.Score > chosen.Score:
		return "it would suit better, but its room is kept for other work or does not hold all of the group"
	case c.Score == chosen.Score:
		return "it would do as well; the first of equals is taken"
	}
	most, at := int64(0), 0
	for i := range c.Terms {
		if gap := contribution(&chosen.Terms[i]) - contribution(&c.Terms[i]); gap > most {
			most, at = gap, i
		}
	}
	t, other := &c.Terms[at], &chosen.Terms[at]
	if t.Name == "fragmentation" {
		return lossAgainst(c, chosen)
	}
	what, better := map[string]string{"gpu": "its GPUs", "memory": "its host memory", "cpu": "its CPU"}[t.Name], "the fullest"
	if t.Weight < 0 {
		better = "the emptiest"
	}
	return fmt.Sprintf("%s would be %s used, not %s: %s is preferred (%s_weight)", what, percent(t.Value), percent(other.Value), better, t.Name)
}

func contribution(t *view.Term) int64 { return t.Value * t.Weight }

// lossAgainst says how much more a node would take from later work than the chosen one.
func lossAgainst(c, chosen *view.Choice) string {
	text := fmt.Sprintf("it would take %s GPU more from later work (fragmentation_weight)", gpusText(c.LostMilli-chosen.LostMilli))
	if broken, kept := c.WholeNow-c.Whole, chosen.WholeNow-chosen.Whole; broken > kept {
		text += fmt.Sprintf(", and %d of its %d whole GPUs", broken, c.WholeNow)
	}
	return text
}

// nextBest is a node that was not chosen, in a line.
func nextBest(c *view.Choice) string {
	if c.Why == "" {
		return "next best: " + c.NodeName
	}
	return "next best: " + c.NodeName + ": " + c.Why
}

func percent(milli int64) string { return strconv.FormatInt((milli+5)/10, 10) + "%" }

// gpusText is an amount of GPUs with two decimals at most.
func gpusText(milli int64) string {
	return strconv.FormatFloat(float64((milli+5)/10)/100, 'f', -1, 64)
}
