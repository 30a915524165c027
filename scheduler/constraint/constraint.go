// SPDX-License-Identifier: MPL-2.0

package constraint

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-version"
)

// Constraint is a condition as a job states it. Both sides are text, which a
// target such as ${attr.kernel.name} stands for when it begins with "${".
type Constraint struct {
	Left, Operand, Right string
}

// Operands are all that Nomad knows; no operand means "=".
var Operands = []string{
	"=", "==", "is", "!=", "not", "<", "<=", ">", ">=", "is_set", "is_not_set", "version", "semver", "regexp",
	"set_contains", "set_contains_all", "set_contains_any", "distinct_hosts", "distinct_property",
}

// Known reports whether Nomad has the operand; with any other no node will do.
func (c Constraint) Known() bool { return c.Operand == "" || slices.Contains(Operands, c.Operand) }

// OnNode evaluates the condition on a node's targets, which are named without the
// braces: attr.kernel.name, meta.rack, node.class. Conditions about several allocs
// (distinct_hosts) are met by every node.
func (c Constraint) OnNode(targets map[string]string) bool {
	left, leftFound := resolve(c.Left, targets)
	right, rightFound := resolve(c.Right, targets)
	both := leftFound && rightFound
	switch c.Operand {
	case "distinct_hosts", "distinct_property":
		return true
	case "=", "==", "is", "":
		return both && left == right
	case "!=", "not":
		return left != right
	case "<", "<=", ">", ">=":
		return both && ordered(c.Operand, left, right)
	case "is_set":
		return leftFound
	case "is_not_set":
		return !leftFound
	}
	return both && matches(c.Operand, left, right)
}

// resolve is the text that a target stands for on a node.
func resolve(target string, targets map[string]string) (string, bool) {
	inner, isTarget := strings.CutPrefix(target, "${")
	if !isTarget {
		return target, true
	}
	value, found := targets[strings.TrimSuffix(inner, "}")]
	return value, found
}

// ordered compares as integers where both are, else as numbers, else as text.
func ordered(operand, left, right string) bool {
	i, errI := strconv.ParseInt(left, 10, 64)
	j, errJ := strconv.ParseInt(right, 10, 64)
	if errI == nil && errJ == nil {
		return inOrder(operand, cmp.Compare(i, j))
	}
	x, errX := strconv.ParseFloat(left, 64)
	y, errY := strconv.ParseFloat(right, 64)
	if errX == nil && errY == nil {
		return x == x && y == y && inOrder(operand, cmp.Compare(x, y)) // nothing is in order with NaN
	}
	return inOrder(operand, strings.Compare(left, right))
}

func inOrder(operand string, order int) bool {
	switch operand {
	case "<":
		return order < 0
	case "<=":
		return order <= 0
	case ">":
		return order > 0
	case ">=":
		return order >= 0
	}
	return order == 0
}

// matches evaluates the operators that need two texts. An unknown one matches
// nothing.
func matches(operand, left, right string) bool {
	switch operand {
	case "version":
		return versionIn(left, right)
	case "semver":
		return semverIn(left, right)
	case "regexp":
		re, err := regexp.Compile(right)
		return err == nil && re.MatchString(left)
	case "set_contains", "set_contains_all":
		have := members(left)
		return !slices.ContainsFunc(members(right), func(s string) bool { return !slices.Contains(have, s) })
	case "set_contains_any":
		have := members(left)
		return slices.ContainsFunc(members(right), func(s string) bool { return slices.Contains(have, s) })
	}
	return false
}

func members(set string) []string {
	list := strings.Split(set, ",")
	for i := range list {
		list[i] = strings.TrimSpace(list[i])
	}
	return list
}

func versionIn(left, right string) bool {
	v, err := version.NewVersion(left)
	if err != nil {
		return false
	}
	bounds, err := version.NewConstraint(right)
	return err == nil && bounds.Check(v)
}

var semverBound = regexp.MustCompile(`^\s*(|=|!=|>|<|>=|<=)\s*(` + version.SemverRegexpRaw + `)\s*$`)

// semverIn differs from versionIn in that a pre-release is a version like any
// other, and that there is no "~>".
func semverIn(left, right string) bool {
	v, err := version.NewVersion(left)
	if err != nil {
		return false
	}
	for _, bound := range strings.Split(right, ",") {
		parts := semverBound.FindStringSubmatch(bound)
		if parts == nil {
			return false
		}
		limit, err := version.NewSemver(parts[2])
		if err != nil {
			return false
		}
		if order := v.Compare(limit); parts[1] == "!=" && order == 0 || parts[1] != "!=" && !inOrder(parts[1], order) {
			return false
		}
	}
	return true
}
