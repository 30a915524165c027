// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// A periodic or parameterized batch job is registered with no allocs of the groups that ask for GPUs,
// and with one group more, that waits. Its children are born so. Nomad lets counts of a child be
// changed and nothing else, and keeps whose child it is: each is let go and held by them, as one.

// HoldGroup is the name of the group that waits.
const HoldGroup = owner

// keyCounts is where in its meta the author's counts stand, by group.
const keyCounts = "counts"

// bornWith is the hold that children are born with. No reason can be written into one.
var bornWith = Hold{Kind: "room", Sentence: "the placement service starts it in its turn (nomad-gpu explain says what it waits for)"}

// family is what a job that was read has of that.
type family struct {
	// child is set for a job that Nomad made of another one and that is held and let go by counts.
	child bool
	waits int // the count of the group that waits
	there bool
}

// Template reports whether Nomad makes children of the job, which are born waiting.
func (a *Ask) Template() bool { return a.Later && a.JobType == "batch" }

// HoldsChildren reports whether the children that Nomad makes of the job are born waiting.
func (j *Job) HoldsChildren() bool { return j.HasHoldGroup() && !j.family.child }

// HasHoldGroup reports whether a group of the job waits in place of others.
func (j *Job) HasHoldGroup() bool { return j.family.there }

// readFamily takes the group that waits out of the job, and gives the others the author's counts.
func (j *Job) readFamily(child bool) error {
	at := slices.IndexFunc(j.groups, func(g group) bool { return g.name == HoldGroup })
	if at < 0 {
		return nil
	}
	hold := j.groups[at]
	if !slices.ContainsFunc(hold.header.Constraints, func(c *Constraint) bool { return c != nil && c.holds() }) {
		return malformed("group " + HoldGroup + ": the name is not valid for a group (the placement service has one of that name)")
	}
	var counts map[string]int
	if err := json.Unmarshal([]byte(hold.header.Meta[keyCounts]), &counts); err != nil {
		return malformed("group " + HoldGroup + ": its meta " + keyCounts + " cannot be read: " + err.Error())
	}
	j.groups = slices.Delete(j.groups, at, at+1)
	j.family = family{child: child, waits: hold.header.count(), there: true}
	for i := range j.groups {
		g := &j.groups[i]
		n, listed := counts[g.name]
		if g.born = listed; !listed || g.header.count() != 0 {
			continue
		}
		g.waits, g.header.Count = true, &n
		g.object = g.object.clone()
		g.object.set("Count", encode(n))
		g.raw = g.object.raw()
	}
	return nil
}

// BecomeChild makes the asks of a job those of a child that Nomad makes of it.
func (j *Job) BecomeChild() {
	for i := range j.Asks {
		j.Asks[i].Later, j.Asks[i].Child = false, j.HoldsChildren()
	}
	j.startAsOne()
}

// startAsOne has all allocs of a child start together: each further count would repeat what completed.
func (j *Job) startAsOne() {
	for i := range j.Asks {
		if a := &j.Asks[i]; a.Child && (a.Count > 1 || len(j.Asks) > 1) {
			a.Gang, a.GangMin = true, 0
		}
	}
}

// checkScaling refuses a least number of allocs in a job whose children start with none.
func (j *Job) checkScaling() error {
	for i := range j.groups {
		g := &j.groups[i]
		asks := slices.ContainsFunc(j.Asks, func(a Ask) bool { return a.Group == g.name })
		if s := g.header.Scaling; asks && s != nil && or(s.Min, 0) > 0 {
			return malformed(fmt.Sprintf("group %q: scaling: min = %d is not valid (0: a child waits for its turn with no allocs)", g.name, *s.Min))
		}
	}
	return nil
}

// hold is what an earlier admission says of a group of a job with children, or of a child: empty where
// it was let go. One that is let go in part is neither.
func (f family) hold(g *group) string {
	switch {
	case g.waits:
		return bornWith.text()
	case f.waits > 0:
		return Hold{Kind: bornWith.Kind, Sentence: "it is being let go"}.text()
	}
	return ""
}

// waiting writes a group of a job with children: none of its allocs start with a child.
func waiting(raw json.RawMessage) (json.RawMessage, error) {
	o, err := parseObject(raw)
	if err != nil {
		return nil, err
	}
	o.set("Count", encode(0))
	return o.raw(), nil
}

// holdGroup is the group that waits in place of others.
func (j *Job) holdGroup() json.RawMessage {
	counts, driver := map[string]int{}, ""
	for i := range j.Asks {
		counts[j.Asks[i].Group], driver = j.Asks[i].Count, j.Asks[i].Tasks[0].Driver
	}
	type resources struct{ CPU, MemoryMB int }
	type holdTask struct {
		Name, Driver string
		Meta         map[string]string
		Resources    resources
	}
	return encode(struct {
		Name        string
		Count       int
		Meta        map[string]string
		Constraints []Constraint
		Tasks       []holdTask
	}{HoldGroup, 1, map[string]string{keyCounts: string(encode(counts))}, []Constraint{holdConstraint(bornWith, 0)},
		[]holdTask{{HoldGroup, driver, map[string]string{KeyGPU: ""}, resources{1, 10}}}})
}

// Scaling is a count of a group to set.
type Scaling struct {
	Group string
	Count int
}

// Scalings are the counts by which decisions are carried out about a child, in an order in which
// something of it waits or runs at any time; ok is false for any other job.
func (j *Job) Scalings(decisions []Decision) (steps []Scaling, ok bool) {
	if !j.family.child || len(decisions) != len(j.Asks) {
		return nil, false
	}
	want, have := map[string]int{HoldGroup: 0}, map[string]int{HoldGroup: j.family.waits}
	for i := range j.Asks {
		a := &j.Asks[i]
		want[a.Group], have[a.Group] = a.Count, a.Count
		if decisions[i].Hold != nil {
			want[a.Group], want[HoldGroup] = 0, 1
		}
		if at := slices.IndexFunc(j.groups, func(g group) bool { return g.name == a.Group }); j.groups[at].waits {
			have[a.Group] = 0
		}
	}
	for _, raise := range []bool{true, false} {
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if n := want[name]; n != have[name] && n > have[name] == raise {
				steps = append(steps, Scaling{name, n})
			}
		}
	}
	return steps, true
}
