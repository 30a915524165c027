package decide

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// admits reports whether a node may run a group: its pool, its datacenter and
// the user's constraints. A constraint that is not understood admits, since
// Nomad will judge it itself.
func admits(n *nomad.Node, a *admit.Ask) bool {
	if a.NodePool != "" && a.NodePool != "all" && n.Plan.Pool != "" && n.Plan.Pool != a.NodePool {
		return false
	}
	if len(a.Datacenters) > 0 && !slices.ContainsFunc(a.Datacenters, func(glob string) bool { return globbed(glob, n.Plan.Datacenter) }) {
		return false
	}
	return !slices.ContainsFunc(a.Constraints, func(c admit.Constraint) bool { return !holds(c, n.Plan.Attributes) })
}

func globbed(glob, s string) bool {
	ok, err := path.Match(glob, s)
	return ok || err != nil
}

// holds evaluates a constraint on a node's attributes.
func holds(c admit.Constraint, attributes map[string]string) bool {
	left, found := target(c.LTarget, attributes)
	switch c.Operand {
	case "is_set":
		return found
	case "is_not_set":
		return !found
	case "distinct_hosts", "distinct_property":
		return true
	}
	right, _ := target(c.RTarget, attributes)
	if !found {
		return c.Operand == "!=" || c.Operand == "not"
	}
	switch c.Operand {
	case "=", "==", "is", "":
		return left == right
	case "!=", "not":
		return left != right
	case "<", "<=", ">", ">=":
		return compares(c.Operand, left, right)
	case "regexp":
		ok, err := regexp.MatchString(right, left)
		return ok || err != nil
	case "set_contains", "set_contains_all":
		return !slices.ContainsFunc(fields(right), func(s string) bool { return !slices.Contains(fields(left), s) })
	case "set_contains_any":
		return slices.ContainsFunc(fields(right), func(s string) bool { return slices.Contains(fields(left), s) })
	}
	return true
}

// target resolves ${attr.x}; other text stands for itself.
func target(t string, attributes map[string]string) (string, bool) {
	inner, ok := strings.CutPrefix(t, "${")
	if !ok {
		return t, true
	}
	v, found := attributes[strings.TrimSuffix(inner, "}")]
	return v, found
}

func fields(s string) []string {
	list := strings.Split(s, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

// compares orders numbers as numbers and the rest as text, as Nomad does.
func compares(operand, left, right string) bool {
	order := strings.Compare(left, right)
	if x, err := strconv.ParseFloat(left, 64); err == nil {
		if y, err := strconv.ParseFloat(right, 64); err == nil {
			order = 0
			if x < y {
				order = -1
			} else if x > y {
				order = 1
			}
		}
	}
	switch operand {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	}
	return order >= 0
}
