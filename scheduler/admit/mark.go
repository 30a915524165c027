package admit

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
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

// canariesMember keeps the author's number of canaries in the set of candidates
// while an admission has set it to none. No node is named like it.
const canariesMember = "canary="

// splitCanaries takes the author's number of canaries out of the members of a
// set; nil when it is not there.
func splitCanaries(list []string) (nodes []string, canaries *int) {
	for _, m := range list {
		number, found := strings.CutPrefix(m, canariesMember)
		if n, err := strconv.Atoi(number); found && err == nil && n > 0 {
			canaries = &n
			continue
		}
		nodes = append(nodes, m)
	}
	return nodes, canaries
}

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
	return Constraint{LTarget: holdPrefix + h.text(), Operand: "=", RTarget: holdTarget}
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
			e.Candidates, e.Canaries = splitCanaries(members(c.RTarget))
		default:
			_, e.Canaries = splitCanaries(members(c.RTarget))
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
		for _, block := range t.blocks {
			d := Device{Name: block.Name, Count: block.Count, Prefer: preferredGroup(t.devices[block.Index])}
			if !a.Tasks[i].Plain() {
				d.Constraints = withoutSharing(block.Constraints, a.Sharing)
			}
			list[i].Devices = append(list[i].Devices, d)
		}
		if !a.Tasks[i].Plain() && t.header.Driver == containerdDriver {
			list[i].Share = t.share()
		}
	}
	return list
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
