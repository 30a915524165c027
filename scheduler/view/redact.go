// SPDX-License-Identifier: MPL-2.0

package view

import (
	"slices"
	"strings"
)

// Hidden stands for a name that the reader may not see.
const Hidden = "(hidden)"

// Redact returns the view without the names of jobs in namespaces that the
// reader may not see. What they hold, and what is kept free for them, stays
// visible: no other job can have it. What waits, was decided or happened there is
// left out, and so is what went wrong in the service itself, which may name any job.
func (c *Cluster) Redact(visible func(namespace string) bool) *Cluster {
	out := *c
	out.Trouble = nil
	if len(c.Trouble) > 0 { // a queue's name and namespaces are in it
		out.Trouble = []string{"some queues in Nomad Variables cannot be used and stay as they were; the service's log says which"}
	}
	out.Nodes = make([]Node, len(c.Nodes))
	for i, n := range c.Nodes {
		n.GPUs = slices.Clone(n.GPUs)
		for k := range n.GPUs {
			n.GPUs[k].redact(visible)
		}
		out.Nodes[i] = n
	}
	out.Pending = keep(c.Pending, func(p Pending) bool { return visible(p.Namespace) })
	out.OnCPU = keep(c.OnCPU, func(f FellBack) bool { return visible(f.Namespace) })
	out.Returning = keep(c.Returning, func(g Returning) bool { return visible(g.Namespace) })
	out.Decisions = keep(c.Decisions, func(d Decision) bool { return visible(d.Namespace) })
	out.Holds = slices.Clone(c.Holds)
	for i := range out.Holds {
		out.Holds[i].redact(visible)
	}
	out.Events = RedactEvents(c.Events, visible)
	return &out
}

// RedactEvents leaves out what was done to jobs in namespaces that the reader may not see, and
// hides for which of their jobs it was done to others.
func RedactEvents(all []Event, visible func(namespace string) bool) []Event {
	out := keep(all, func(e Event) bool { return e.Namespace != "" && visible(e.Namespace) })
	for i := range out {
		out[i].redact(visible)
	}
	return out
}

// redact hides for which job room is kept free, but not that it is.
func (h *Hold) redact(visible func(string) bool) {
	if visible(h.Namespace) {
		return
	}
	h.ID, h.Namespace, h.Queue, h.Owner = Hidden, Hidden, "", ""
	if h.ClaimedBy != "" {
		h.ClaimedBy = Hidden
	}
}

// redact hides for whom something was done; the sentence names it too.
func (e *Event) redact(visible func(string) bool) {
	namespace, _, found := strings.Cut(e.For, "/")
	if found && !visible(namespace) {
		e.For = Hidden
		e.Text = e.Kind + " of " + e.Namespace + "/" + e.JobID + " for a job that the token may not see"
	}
}

func (g *GPU) redact(visible func(string) bool) {
	hidden := map[string]bool{}
	g.Holders = slices.Clone(g.Holders)
	for i := range g.Holders {
		h := &g.Holders[i]
		if visible(h.Namespace) {
			continue
		}
		hidden[h.AllocID] = true
		h.AllocID, h.Namespace, h.JobID, h.Group, h.Task, h.Queue = "", Hidden, Hidden, "", "", ""
	}
	if len(hidden) == 0 {
		return
	}
	g.Instances = slices.Clone(g.Instances)
	for i := range g.Instances {
		if hidden[g.Instances[i].AllocID] {
			g.Instances[i].AllocID, g.Instances[i].Task = Hidden, ""
		}
	}
}

// Namespaces are all namespaces that the picture names, in order.
func (c *Cluster) Namespaces() []string {
	seen := map[string]bool{}
	for _, n := range c.Nodes {
		for _, g := range n.GPUs {
			for _, h := range g.Holders {
				seen[h.Namespace] = true
			}
		}
	}
	for _, p := range c.Pending {
		seen[p.Namespace] = true
	}
	for _, f := range c.OnCPU {
		seen[f.Namespace] = true
	}
	for _, g := range c.Returning {
		seen[g.Namespace] = true
	}
	for _, d := range c.Decisions {
		seen[d.Namespace] = true
	}
	for _, h := range c.Holds {
		seen[h.Namespace] = true
	}
	for _, e := range c.Events {
		if e.Namespace != "" {
			seen[e.Namespace] = true
		}
		if namespace, _, found := strings.Cut(e.For, "/"); found {
			seen[namespace] = true
		}
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func keep[T any](all []T, want func(T) bool) []T {
	out := make([]T, 0, len(all))
	for _, one := range all {
		if want(one) {
			out = append(out, one)
		}
	}
	return out
}
