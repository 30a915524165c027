// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// impossible refuses what no GPU can ever hold, with the reasons per kind of
// node, and the rules of its queue where there are any.
func impossible(a *admit.Ask, q *config.Queue, e place.Explanation) error {
	r := &admit.Refusal{
		Status: http.StatusUnprocessableEntity,
		Text:   fmt.Sprintf("group %q asks for %s, which no node can ever hold", a.Group, a),
	}
	r.Details = append(reasons(e), rules(q)...)
	if len(e.Reasons) == 0 {
		r.Details = append(r.Details, "no node is known")
	}
	return r
}

// reasons is an explanation as lines for people.
func reasons(e place.Explanation) []string {
	var lines []string
	for _, why := range e.Reasons {
		lines = append(lines, place.Reason{Nodes: why.Nodes, Why: why.Why}.String())
	}
	return lines
}

// rules says where a queue's work may run, in one line; none where it may run
// anywhere.
func rules(q *config.Queue) []string {
	if q == nil {
		return nil
	}
	var only []string
	for _, bound := range []struct {
		what string
		any  []string
	}{{"GPUs of model", q.Models}, {"node pool", q.NodePools}, {"datacenter", q.Datacenters}} {
		if len(bound.any) > 0 {
			only = append(only, bound.what+" "+strings.Join(bound.any, " or "))
		}
	}
	for _, c := range q.Constraints {
		only = append(only, "nodes with "+strings.TrimSpace(c.Attribute+" "+c.Operator+" "+c.Value))
	}
	if len(only) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("queue %s may use only %s", q.Name, strings.Join(only, ", "))}
}
