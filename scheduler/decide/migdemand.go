// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/miglayout"
	"github.com/nomad-gpu/nomad-gpu/scheduler/record"
	"github.com/nomad-gpu/nomad-gpu/scheduler/state"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// MIG is what a decision about MIG layouts is made of.
type MIG struct {
	// GPUs are those whose layout follows demand, and Wants what waits for instances, in
	// waiting order.
	GPUs  []miglayout.GPU
	Wants []miglayout.Want
	// Answered is the order that a GPU has carried out or refused, by GPU. Vain is one that it
	// has not, and that serves nothing any more.
	Answered, Vain map[string]string
}

// MIGDemand collects what a decision about MIG layouts is made of.
func MIGDemand(tx *state.Tx) MIG {
	m := MIG{Answered: map[string]string{}, Vain: map[string]string{}}
	for _, id := range tx.Cluster.MIGNodeIDs() {
		n := tx.Cluster.Node(id)
		until := busyUntil(tx, n)
		for i := range n.MIG {
			m.GPUs = append(m.GPUs, migGPU(n, &n.MIG[i], until))
			if !unanswered(&n.MIG[i]) {
				m.Answered[n.MIG[i].GPU] = n.MIG[i].Order.ID
			}
		}
	}
	if len(m.GPUs) == 0 {
		return m
	}
	for _, w := range tx.Queue.Waiting() {
		if w.Held == "" || w.Held == view.WaitsForRoom {
			m.Wants = append(m.Wants, migWants(tx, w)...)
		}
	}
	for _, id := range tx.Cluster.MIGNodeIDs() {
		for _, d := range tx.Cluster.Node(id).MIG {
			served := func(w miglayout.Want) bool { return strings.Contains(d.Order.For, w.Key) }
			if unanswered(&d) && d.Order.For != "" && !slices.ContainsFunc(m.Wants, served) { // an operator's is for nothing that waits
				m.Vain[d.GPU] = d.Order.ID
			}
		}
	}
	return m
}

// busyUntil are the instances of a node that are in use or reserved, and when that is likely to
// end: zero where it is not known.
func busyUntil(tx *state.Tx, n *nomad.Node) map[string]time.Time {
	busy := map[string]time.Time{}
	later := func(uuid string, until time.Time) {
		if had, known := busy[uuid]; known && (had.IsZero() || until.Before(had) && !until.IsZero()) {
			return
		}
		busy[uuid] = until
	}
	for _, u := range tx.Capacity.UsagesOn(n.Plan.ID) {
		until := time.Time{}
		if left := tx.Cluster.Remaining(&u); left.Known() {
			until = tx.Now().Add(left.At(0.5))
		}
		for _, take := range u.Takes {
			later(n.Plan.GPUs[take.GPU].ID, until)
		}
	}
	for a := range tx.Cluster.AllocsOn(n.Plan.ID) {
		for _, d := range a.Devices {
			for _, id := range d.IDs {
				if slice, _, err := gpu.ParseSliceID(id); err == nil && a.Holds() {
					if _, known := busy[slice.UUID]; !known {
						busy[slice.UUID] = time.Time{}
					}
				}
			}
		}
	}
	return busy
}

// migGPU is a GPU for the decision. Instances that Nomad does not show, or that are not healthy,
// may be in use.
func migGPU(n *nomad.Node, d *nomad.MIGDemand, busy map[string]time.Time) miglayout.GPU {
	g := miglayout.GPU{
		ID: d.GPU, Node: n.Plan.ID, Profiles: d.Profiles, Pool: n.Plan.ID + "/" + strconv.Itoa(d.Pool), Least: d.Least,
		AtOnce: d.AtOnce, PerDay: d.PerDay,
	}
	for _, at := range d.Cuts {
		g.Cuts = append(g.Cuts, time.Unix(at, 0))
	}
	for _, i := range d.Instances {
		until, used := busy[i.UUID]
		shown := slices.ContainsFunc(n.View.GPUs, func(v view.GPU) bool { return v.UUID == i.UUID && v.Healthy && !v.Cordoned })
		g.Instances = append(g.Instances, miglayout.Instance{MIGInstance: i, Busy: used || !shown, Until: until})
	}
	g.Coming = comingOf(d, &g, busy)
	switch {
	case d.Doing != "" || unanswered(d):
		g.Cutting = true
	case n.Plan.Ineligible:
		g.Unready = "is on a node that takes no new work"
	}
	return g
}

// comingOf are the instances of a GPU's order that are no use yet, and are about to be: not made,
// or cordoned still.
func comingOf(d *nomad.MIGDemand, g *miglayout.GPU, busy map[string]time.Time) (list []gpu.MIGPlace) {
	if d.Refused == d.Order.ID {
		return nil
	}
	for _, at := range d.Order.Make {
		n := slices.IndexFunc(g.Instances, func(i miglayout.Instance) bool { return i.MIGPlace == at })
		if n < 0 {
			if d.Doing == d.Order.ID || unanswered(d) {
				list = append(list, at)
			}
			continue
		}
		if _, used := busy[g.Instances[n].UUID]; g.Instances[n].Busy && !used {
			list = append(list, at)
		}
	}
	return list
}

// unanswered reports whether a GPU has an order that it has neither carried out nor refused. One
// whose instances are gone was carried out at some time.
func unanswered(d *nomad.MIGDemand) bool {
	if d.Order.ID == "" || d.Refused == d.Order.ID {
		return false
	}
	has := func(at gpu.MIGPlace) bool {
		return slices.ContainsFunc(d.Instances, func(i gpu.MIGInstance) bool { return i.MIGPlace == at })
	}
	there := func(uuid string) bool {
		return slices.ContainsFunc(d.Instances, func(i gpu.MIGInstance) bool { return i.UUID == uuid })
	}
	made := !slices.ContainsFunc(d.Order.Make, func(at gpu.MIGPlace) bool { return !has(at) })
	return !made && (len(d.Order.Remove) == 0 || slices.ContainsFunc(d.Order.Remove, there))
}

// migWants are the instances that a waiting group asks for: a want for each device block, and for
// each alloc that takes several, which lie on one node.
func migWants(tx *state.Tx, w *state.Waiting) (wants []miglayout.Want) {
	ask := waitingAsk(tx, w)
	if ask == nil || !ask.WantsMIG() {
		return nil
	}
	a, err := newGroupAsk(tx, w.Job, ask)
	if err != nil {
		return nil
	}
	if wants = wantsOf(a, w.Missing); len(wants) > 0 && tx.Cluster.Live(w.Job, w.Group) > 0 && ask.Sharing == admit.SharingMIG {
		if has := profileOf(tx.Queue.Record(w.Job).Groups[w.Group].Decision.Tasks); has != "" {
			for i := range wants {
				wants[i].Profiles = []string{has}
			}
		}
	}
	for i := range wants {
		wants[i].Key, wants[i].Since = w.Job.String()+"/"+w.Group, w.Turn.Since
	}
	return wants
}

// mostAllocs is how many allocs of a group that take several instances each are looked at.
const mostAllocs = 16

// wantsOf are the instances that some allocs of a group take, on the nodes that it may run on and whose
// layout follows demand.
func wantsOf(a groupAsk, allocs int) (wants []miglayout.Want) {
	may := map[string]bool{}
	for _, id := range a.tx.Cluster.MIGNodeIDs() {
		n := &a.tx.Cluster.Node(id).Plan
		named := func(g place.GPU) bool { // of the instances, which are of the GPU's model
			r := &a.parts[0].Req
			return g.Profile != "" && (len(r.Models) == 0 || slices.ContainsFunc(r.Models, g.Is)) && !slices.ContainsFunc(r.Not, g.Is)
		}
		if a.parts[0].Req.AdmittedBy(n) && slices.ContainsFunc(n.GPUs, named) {
			may[id] = true
		}
	}
	var sizes []string
	if a.ask.Sharing == admit.SharingMIG {
		for _, p := range suitable(a) {
			sizes = append(sizes, p.name)
		}
	}
	each := 0
	for _, t := range a.ask.Tasks {
		if !t.Plain() && len(sizes) > 0 {
			wants = append(wants, miglayout.Want{Profiles: sizes, Count: 1})
			each++
		}
		for _, d := range t.Devices {
			want := miglayout.Want{Count: int(d.Count)}
			for _, one := range append([]admit.DeviceAsk{d}, d.Or...) {
				if p := one.Profile(); p != "" {
					want.Profiles = append(want.Profiles, strings.ToLower(p))
				}
			}
			if len(want.Profiles) > 0 {
				wants = append(wants, want)
				each += want.Count
			}
		}
	}
	for i := range wants {
		wants[i].Nodes = may
		if each == 1 {
			wants[i].Count *= allocs
		}
	}
	if each <= 1 {
		return wants
	}
	one := wants
	wants = nil
	for n := range min(allocs, mostAllocs) {
		for _, w := range one {
			w.Alloc = n + 1
			wants = append(wants, w)
		}
	}
	return wants
}

// withRecut tells with a held group which GPU would be cut for it, or why none would.
func withRecut(a groupAsk, g record.Group) record.Group {
	if g.Decision.Hold == nil || !a.ask.WantsMIG() {
		return g
	}
	m := MIGDemand(a.tx)
	key := a.key.String() + "/" + a.ask.Group
	own := wantsOf(a, a.ask.Count)
	for i := range own {
		own[i].Key = key
	}
	others := slices.DeleteFunc(m.Wants, func(w miglayout.Want) bool { return w.Key == key })
	answer := miglayout.Decide(a.tx.Now(), m.GPUs, append(others, own...), nil, miglayout.DefaultRules)
	text := answer.Left[key]
	for _, cut := range answer.Cuts {
		if slices.Contains(cut.For, key) {
			text = cut.Text
		}
	}
	if text != "" {
		g.Decision.Explanation = append(g.Decision.Explanation, text)
	}
	return g
}

// waitingAsk is what a waiting group asks for: as it was recorded, or, where it came around the
// service, as it is registered and if Nomad lacks devices only.
func waitingAsk(tx *state.Tx, w *state.Waiting) *admit.Ask {
	if r := tx.Queue.Record(w.Job); r != nil {
		if g, known := r.Groups[w.Group]; known {
			return &g.Ask
		}
	}
	j, b := tx.Cluster.Job(w.Job), tx.Cluster.Blocked(w.Job)
	if j == nil || b == nil || !b.ForDevices[w.Group] {
		return nil
	}
	if g := j.Group(w.Group); g != nil {
		return g.Ask
	}
	return nil
}

// madeByDemand reports whether GPUs whose layout follows demand, on a node that a request may
// use, can be cut into the instances that it names.
func madeByDemand(a groupAsk) bool {
	if !a.ask.WantsMIG() {
		return false
	}
	wants := wantsOf(a, 1)
	return len(wants) > 0 && slices.ContainsFunc(a.tx.Cluster.MIGNodeIDs(), func(id string) bool {
		made := a.tx.Cluster.Node(id).MIG
		return !slices.ContainsFunc(wants, func(w miglayout.Want) bool {
			most := 0
			for _, name := range w.Profiles {
				for _, m := range made {
					if p, known := gpu.MIGProfileOf(m.Profiles, name); known && p.Allowed {
						most += p.Most
					}
				}
			}
			return !w.Nodes[id] || most < w.Count
		})
	})
}
