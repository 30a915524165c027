package admit

import (
	"encoding/json"
	"slices"
	"strings"
)

// What an admission writes beside the user's own constraints and affinities is
// known again by its text, because Nomad offers no other place that may change
// without replacing allocs.
const (
	// owner is the first member of every set that an admission writes.
	owner = "nomad-gpu"
	// holdPrefix starts the constraint that keeps a group waiting. It is text,
	// not an attribute, so it equals nothing and no node passes; nomad job
	// status shows it as it stands.
	holdPrefix = owner + ": waits for "
	holdTarget = "admitted"

	anyOf       = "set_contains_any"
	isNot       = "!=" // true of every node: none is named like the owner
	nodeTarget  = "${node.unique.id}"
	groupTarget = "${device.model}"
)

// maxPreferred is how many nodes are preferred in the job: one for the
// placement, the others for when it is taken meanwhile.
const maxPreferred = 3

// preferenceWeights are the affinities' weights. Each set holds the nodes
// before it too, so that the best node collects all of them.
var preferenceWeights = [maxPreferred]int{100, 50, 25}

func marked(set string) bool { return set == owner || strings.HasPrefix(set, owner+",") }

func markedSet(members []string) string { return owner + "," + strings.Join(members, ",") }

func members(set string) []string { return strings.Split(set, ",")[1:] }

// ours reports whether an admission wrote the constraint.
func (c Constraint) ours() bool {
	onNode := c.LTarget == nodeTarget && (c.Operand == anyOf || c.Operand == isNot)
	return onNode && marked(c.RTarget) || c.holds()
}

func (c Constraint) holds() bool {
	return strings.HasPrefix(c.LTarget, holdPrefix) && c.RTarget == holdTarget
}

func (a *affinity) ours() bool { return a.Operand == anyOf && marked(a.RTarget) }

// holdConstraint keeps a group from every node and says why.
func holdConstraint(h Hold) Constraint {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == '$' || r == '%' {
			return -1
		}
		return r
	}, h.Kind+": "+h.Sentence)
	return Constraint{LTarget: holdPrefix + text, Operand: "=", RTarget: holdTarget}
}

// earlier reads what an admission left in the group.
func (g group) earlier() *Earlier {
	var e Earlier
	found := false
	for _, c := range g.header.Constraints {
		switch {
		case c == nil || !c.ours():
			continue
		case c.holds():
			e.Hold = strings.TrimPrefix(c.LTarget, holdPrefix)
		case c.Operand == anyOf:
			e.Candidates = members(c.RTarget)
		}
		found = true
	}
	for _, a := range g.header.Affinities {
		if a != nil && a.ours() && a.LTarget == nodeTarget {
			found = true
			if nodes := members(a.RTarget); len(nodes) > len(e.Preferred) {
				e.Preferred = nodes
			}
		}
	}
	e.Groups = g.preferredGroups()
	if !found && len(e.Groups) == 0 {
		return nil
	}
	return &e
}

// preferredGroups reads the preferred device groups of every GPU block.
func (g group) preferredGroups() map[string][]string {
	var found map[string][]string
	for _, t := range g.tasks {
		for _, block := range t.blocks {
			prefer := preferredGroup(t.devices[block.Index])
			if prefer == "" {
				continue
			}
			if found == nil {
				found = map[string][]string{}
			}
			list := found[t.header.Name]
			for len(list) < slices.IndexFunc(t.blocks, func(b DeviceAsk) bool { return b.Index == block.Index }) {
				list = append(list, "")
			}
			found[t.header.Name] = append(list, prefer)
		}
	}
	return found
}

func preferredGroup(raw json.RawMessage) string {
	o, err := parseObject(raw)
	if err != nil {
		return ""
	}
	var affinities []*affinity
	if err := o.decode("Affinities", &affinities); err != nil {
		return ""
	}
	for _, a := range affinities {
		if a != nil && a.ours() && a.LTarget == groupTarget {
			return strings.Join(members(a.RTarget), ",")
		}
	}
	return ""
}
