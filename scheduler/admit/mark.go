// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
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
	holdPrefix = owner + HoldMark
	holdTarget = "admitted"

	anyOf       = "set_contains_any"
	isNot       = "!=" // true of every node: none is named like the owner
	nodeTarget  = "${node.unique.id}"
	groupTarget = "${device.model}"
)

// HoldMark is in whatever Nomad says of a constraint by which a group waits.
const HoldMark = ": waits for "

// What a queue's bounds are about.
const (
	DatacenterTarget = "${node.datacenter}"
	PoolTarget       = "${node.pool}"
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

// canariesMember keeps the author's number of canaries in the set of candidates, or in the hold,
// while an admission has set it to none. slotsMember says in the set of candidates how many allocs
// each of them may get: the constraint that has Nomad count them can bear no mark. No node is named
// like either.
const (
	canariesMember = "canary="
	slotsMember    = "slots="
)

// splitNumber takes a number out of the members of a set; nil when it is not there.
func splitNumber(list []string, name string) (others []string, number *int) {
	for _, m := range list {
		text, found := strings.CutPrefix(m, name)
		if n, err := strconv.Atoi(text); found && err == nil && n > 0 {
			number = &n
			continue
		}
		others = append(others, m)
	}
	return others, number
}

// slotsConstraint has Nomad start no more allocs of the group than that on a node.
func slotsConstraint(slots int) Constraint {
	return Constraint{LTarget: nodeTarget, Operand: "distinct_property", RTarget: strconv.Itoa(slots)}
}

// slotsAt is where in a group's constraints an admission wrote how many allocs a node may get, after
// those of the author; -1: it wrote none.
func slotsAt(list []*Constraint) (at int) {
	var want Constraint
	for _, c := range list {
		if c != nil && c.ours() && c.LTarget == nodeTarget && c.Operand == anyOf {
			if _, slots := splitNumber(members(c.RTarget), slotsMember); slots != nil {
				want = slotsConstraint(*slots)
			}
		}
	}
	for at = len(list) - 1; at >= 0; at-- {
		if want.Operand != "" && list[at] != nil && *list[at] == want {
			break
		}
	}
	return at
}

// ours reports whether an admission wrote the constraint.
func (c Constraint) ours() bool {
	onNode := c.LTarget == nodeTarget && (c.Operand == anyOf || c.Operand == isNot)
	return onNode && marked(c.RTarget) || c.holds() || c.binds() || c.bounds()
}

// bounds reports whether an admission wrote the constraint for the group's queue. The
// operator's own conditions bear no mark: nothing in them could.
func (c Constraint) bounds() bool {
	return (c.LTarget == DatacenterTarget || c.LTarget == PoolTarget) && c.Operand == anyOf && marked(c.RTarget)
}

// bound is one of a decision's bounds as it stands in the job.
func bound(c Constraint) Constraint {
	if (c.LTarget == DatacenterTarget || c.LTarget == PoolTarget) && c.Operand == anyOf {
		return bind(c)
	}
	return c
}

// binds reports whether an admission wrote the constraint into a user's device block, to
// keep it on the models of its queue. No model is named like the owner.
func (c Constraint) binds() bool {
	return (strings.HasPrefix(c.LTarget, "${device.attr.") || c.LTarget == groupTarget) && c.Operand == anyOf && marked(c.RTarget)
}

// bind marks a condition that an admission writes.
func bind(bound Constraint) Constraint {
	bound.RTarget = markedSet([]string{bound.RTarget})
	return bound
}

func (c Constraint) holds() bool {
	target, _, _ := strings.Cut(c.RTarget, ",")
	return strings.HasPrefix(c.LTarget, holdPrefix) && target == holdTarget
}

func (a *affinity) ours() bool { return a.Operand == anyOf && marked(a.RTarget) }

// holdConstraint keeps a group from every node and says why. It names no attribute of a node:
// Nomad evaluates the job again when it is registered, or a node of a new class joins, and not before.
func holdConstraint(h Hold, canaries int) Constraint {
	c := Constraint{LTarget: holdPrefix + h.text(), Operand: "=", RTarget: holdTarget}
	if canaries > 0 {
		c.RTarget += "," + canariesMember + strconv.Itoa(canaries)
	}
	return c
}

// text is the hold in one line that Nomad does not interpolate.
func (h Hold) text() string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == '$' || r == '%' {
			return -1
		}
		return r
	}, h.Kind+": "+h.Sentence)
}

// parseHold reads what text wrote.
func parseHold(text string) *Hold {
	kind, sentence, _ := strings.Cut(text, ": ")
	return &Hold{Kind: kind, Sentence: sentence}
}

// earlier reads what an admission left in the group.
func (g group) earlier(f family) *Earlier {
	var e Earlier
	found := g.born
	for _, c := range g.header.Constraints {
		switch {
		case c == nil || !c.ours():
			continue
		case c.holds():
			e.Hold = strings.TrimPrefix(c.LTarget, holdPrefix)
			if _, canaries := splitNumber(members(c.RTarget), canariesMember); canaries != nil {
				e.Canaries = canaries
			}
		case c.bounds():
			e.Bounds = append(e.Bounds, Constraint{LTarget: c.LTarget, Operand: c.Operand, RTarget: strings.Join(members(c.RTarget), ",")})
		case c.Operand == anyOf:
			nodes, slots := splitNumber(members(c.RTarget), slotsMember)
			e.Candidates, e.Canaries = splitNumber(nodes, canariesMember)
			e.Slots = or(slots, 0)
		default:
			_, e.Canaries = splitNumber(members(c.RTarget), canariesMember)
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
	if g.born {
		e.Hold = f.hold(&g)
	}
	e.Groups = g.preferredGroups()
	if !found && len(e.Groups) == 0 {
		return nil
	}
	return &e
}

// readTasks reads the device blocks and the shares that an admission wrote for
// the tasks of an ask.
func (g group) readTasks(a *Ask) []TaskDecision {
	list := make([]TaskDecision, len(a.Tasks))
	for i := range a.Tasks {
		list[i].Task = a.Tasks[i].Task
		at := slices.IndexFunc(g.tasks, func(t task) bool { return t.header.Name == a.Tasks[i].Task })
		if at < 0 {
			continue
		}
		t := g.tasks[at]
		if a.Tasks[i].Framework != nil {
			list[i].Holds = framework.WrittenShare(t.env())
		}
		for _, block := range t.blocks {
			d := Device{Name: block.Name, Count: block.Count, Prefer: preferredGroup(t.devices[block.Index])}
			if a.Tasks[i].Plain() {
				list[i].Bound = boundOf(t.devices[block.Index])
			} else {
				d.Constraints = withoutSharing(block.Constraints, a.Sharing)
				d.Rank = rankOf(t.devices[block.Index])
			}
			list[i].Devices = append(list[i].Devices, d)
		}
		if !a.Tasks[i].Plain() && t.header.Driver == gpu.DriverName {
			list[i].Share, list[i].SeatPriority = t.share()
		}
	}
	return list
}

// boundOf reads the bound that an admission wrote into a user's device block, or into its
// alternatives; nil where it wrote none.
func boundOf(raw json.RawMessage) *Constraint {
	type conditions struct{ Constraints []*Constraint }
	var block struct {
		conditions
		FirstAvailable []conditions
	}
	if json.Unmarshal(raw, &block) != nil {
		return nil
	}
	list := block.Constraints
	for _, one := range block.FirstAvailable {
		list = append(list, one.Constraints...)
	}
	for _, c := range list {
		if c != nil && c.binds() {
			return &Constraint{LTarget: c.LTarget, Operand: c.Operand, RTarget: strings.Join(members(c.RTarget), ",")}
		}
	}
	return nil
}

// withoutSharing takes off the condition that block adds.
func withoutSharing(list []Constraint, sharing gpu.Sharing) []Constraint {
	if n := len(list); sharing != "" && n > 0 && list[n-1] == sharingIs(sharing) {
		return list[:n-1]
	}
	return list
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
	for _, a := range ourAffinities(raw) {
		if a.LTarget == groupTarget {
			return a.RTarget
		}
	}
	return ""
}

// rankOf reads the affinities that prefer models in order.
func rankOf(raw json.RawMessage) []Affinity {
	var rank []Affinity
	for _, a := range ourAffinities(raw) {
		if a.LTarget != groupTarget {
			rank = append(rank, a)
		}
	}
	return rank
}

// ourAffinities are those that an admission wrote into a device block, without its mark.
func ourAffinities(raw json.RawMessage) []Affinity {
	o, err := parseObject(raw)
	if err != nil {
		return nil
	}
	var affinities []*affinity
	if err := o.decode("Affinities", &affinities); err != nil {
		return nil
	}
	var ours []Affinity
	for _, a := range affinities {
		if a != nil && a.ours() {
			plain := a.plain()
			plain.RTarget = strings.Join(members(a.RTarget), ",")
			ours = append(ours, plain)
		}
	}
	return ours
}
