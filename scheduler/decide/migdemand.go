// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/miglayout"
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
	nodes := map[string]bool{}
	for _, id := range tx.MIGNodeIDs() {
		n := tx.Node(id)
		nodes[id] = true
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
	for _, w := range tx.Waiting() {
		if w.Held == "" || w.Held == view.WaitsForRoom {
			m.Wants = append(m.Wants, migWants(tx, w, nodes)...)
		}
	}
	for id := range nodes {
		for _, d := range tx.Node(id).MIG {
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
	for _, u := range tx.UsagesOn(n.Plan.ID) {
		until := time.Time{}
		if left := tx.Remaining(&u); left.Known() {
			until = tx.Now().Add(left.At(0.5))
		}
		for _, take := range u.Takes {
			later(n.Plan.GPUs[take.GPU].ID, until)
		}
	}
	for a := range tx.AllocsOn(n.Plan.ID) {
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

// migWants are the instances that a waiting group asks for, a want for each device block.
func migWants(tx *state.Tx, w *state.Waiting, nodes map[string]bool) (wants []miglayout.Want) {
	ask := waitingAsk(tx, w)
	if ask == nil || !ask.NamesMIG() {
		return nil
	}
	q, err := tx.Config().QueueFor(ask.Namespace, ask.Queue)
	if err != nil {
		return nil
	}
	parts, err := blocks.PartsOf(tx, ask, q)
	if err != nil {
		return nil
	}
	may := map[string]bool{}
	for id := range nodes {
		if parts[0].Req.AdmittedBy(&tx.Node(id).Plan) {
			may[id] = true
		}
	}
	for _, t := range ask.Tasks {
		for _, d := range t.Devices {
			want := miglayout.Want{Key: w.Job.String() + "/" + w.Group, Count: w.Missing * int(d.Count), Since: w.Turn.Since, Nodes: may}
			for _, one := range append([]admit.DeviceAsk{d}, d.Or...) {
				if p := one.Profile(); p != "" {
					want.Profiles = append(want.Profiles, strings.ToLower(p))
				}
			}
			if len(want.Profiles) > 0 {
				wants = append(wants, want)
			}
		}
	}
	return wants
}

// waitingAsk is what a waiting group asks for: as it was recorded, or, where it came around the
// service, as it is registered and if Nomad lacks devices only.
func waitingAsk(tx *state.Tx, w *state.Waiting) *admit.Ask {
	if r := tx.Record(w.Job); r != nil {
		if g, known := r.Groups[w.Group]; known {
			return &g.Ask
		}
	}
	j, b := tx.Job(w.Job), tx.Blocked(w.Job)
	if j == nil || b == nil || !b.ForDevices[w.Group] {
		return nil
	}
	if g := j.Group(w.Group); g != nil {
		return g.Ask
	}
	return nil
}

// madeByDemand reports whether a GPU whose layout follows demand, on a node that a request may
// use, can be cut into the instances that it names.
func madeByDemand(a groupAsk) bool {
	if !a.ask.NamesMIG() {
		return false
	}
	for _, id := range a.tx.MIGNodeIDs() {
		n := a.tx.Node(id)
		if !a.parts[0].Req.AdmittedBy(&n.Plan) {
			continue
		}
		all := true
		for _, t := range a.ask.Tasks {
			for _, d := range t.Devices {
				all = all && (d.Profile() == "" || slices.ContainsFunc(n.MIG, func(m nomad.MIGDemand) bool {
					p, known := gpu.MIGProfileOf(m.Profiles, d.Profile())
					return known && p.Allowed && int64(p.Most*len(n.MIG)) >= d.Count
				}))
			}
		}
		if all {
			return true
		}
	}
	return false
}
