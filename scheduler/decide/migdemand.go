// SPDX-License-Identifier: MPL-2.0

package decide

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide/blocks"
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
	for _, w := range slices.Collect(tx.Queue.Waiting()) {
		if w.Held == "" || w.Held == view.WaitsForRoom {
			for _, want := range migWants(tx, w) {
				m.Wants = miglayout.Join(m.Wants, want)
			}
		}
	}
	for _, id := range tx.Cluster.MIGNodeIDs() {
		for _, d := range tx.Cluster.Node(id).MIG {
			served := func(w miglayout.Want) bool {
				return slices.ContainsFunc(w.Keys(), func(k string) bool { return slices.Contains(strings.Split(d.Order.For, ", "), k) })
			}
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
		ID: d.GPU, Name: d.Name() + " of " + n.Plan.Name, Node: n.Plan.ID, Profiles: d.Profiles, Pool: n.Plan.ID + "/" + strconv.Itoa(d.Pool), Least: d.Least,
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
	if wants = withHost(a, wantsOf(a, w.Missing)); len(wants) == 0 {
		if why := notMade(a); why != "" {
			wants = []miglayout.Want{{Count: 1, Why: why}}
		}
	} else if tx.Cluster.Live(w.Job, w.Group) > 0 && ask.Sharing == admit.SharingMIG {
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

// withHost leaves out nodes without CPU and memory for an alloc, unless an eviction could make room.
func withHost(a groupAsk, wants []miglayout.Want) []miglayout.Want {
	if len(wants) == 0 || a.tx.Planner().Snapshot().AnyBelow(a.ask.Priority) {
		return wants
	}
	for i := range wants {
		maps.DeleteFunc(wants[i].Nodes, func(id string, _ bool) bool {
			free, _ := a.tx.Planner().Snapshot().Free(id)
			return free.CPUMHz < a.parts[0].Req.CPUMHz || free.MemoryMiB < a.parts[0].Req.MemoryMiB
		})
		if len(wants[i].Nodes) == 0 {
			wants[i].Why = "no node whose GPUs may be cut for it has the CPU and the memory left"
		}
	}
	return wants
}

// mostAllocs is how many allocs of a group that take several instances each are looked at.
const mostAllocs = 16

// wantsOf are the instances that some allocs of a group take, on the nodes that it may run on and whose
// layout follows demand: one for each of its parts, with all profiles of which Nomad would take an instance.
func wantsOf(a groupAsk, allocs int) (wants []miglayout.Want) {
	var nodes []*nomad.Node
	for _, id := range a.tx.Cluster.MIGNodeIDs() {
		if n := a.tx.Cluster.Node(id); len(a.parts) > 0 && a.parts[0].Req.AdmittedBy(&n.Plan) {
			nodes = append(nodes, n)
		}
	}
	var sizes []string
	if a.ask.Sharing == admit.SharingMIG && len(nodes) > 0 {
		for _, p := range suitable(a) {
			sizes = append(sizes, p.name)
		}
	}
	each := 0
	for i := range a.parts {
		want := wantOf(a, &a.parts[i], nodes, sizes)
		if len(want.Profiles) > 0 {
			wants = append(wants, want)
			each += want.Count
		}
	}
	for i := range wants {
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

// wantOf is what one part of an ask takes; without profiles where no instance serves it.
func wantOf(a groupAsk, part *blocks.Part, nodes []*nomad.Node, sizes []string) miglayout.Want {
	want := miglayout.Want{Count: 1, Nodes: map[string]bool{}, On: map[string]map[string]int{}}
	plain := a.ask.Tasks[part.Task].Plain()
	if plain && part.Req.Whole {
		want.Count = part.Req.GPUs
	}
	type rank struct{ alternative, size int64 }
	ranks, alternative := map[string]rank{}, int64(0)
	part.Alternatives(func(r *place.Request) {
		alternative++
		for _, n := range nodes {
			for i := range n.MIG {
				d := &n.MIG[i]
				for k := range d.Offers {
					o, times := &d.Offers[k], 0
					switch {
					case plain:
						times = o.Serves(r.Device, r.Conditions, max(1, r.Instances))
					case o.Parts == 0 && slices.Contains(sizes, o.Profile) && named(n, d, r):
						times = 1
					}
					if times == 0 {
						continue
					}
					want.Nodes[n.Plan.ID] = true
					if want.On[d.GPU] == nil {
						want.On[d.GPU] = map[string]int{}
					}
					want.On[d.GPU][o.Profile] = times
					if _, known := ranks[o.Profile]; !known {
						ranks[o.Profile] = rank{alternative, o.Size}
						want.Profiles = append(want.Profiles, o.Profile)
					}
				}
			}
		}
	})
	slices.SortStableFunc(want.Profiles, func(x, y string) int {
		return cmp.Or(cmp.Compare(ranks[x].alternative, ranks[y].alternative), cmp.Compare(ranks[x].size, ranks[y].size), strings.Compare(x, y))
	})
	return want
}

// named reports whether a request names the model of a GPU, or none.
func named(n *nomad.Node, d *nomad.MIGDemand, r *place.Request) bool {
	return slices.ContainsFunc(n.Plan.GPUs, func(g place.GPU) bool {
		return slices.ContainsFunc(d.Instances, func(i gpu.MIGInstance) bool { return i.UUID == g.ID }) &&
			(len(r.Models) == 0 || slices.ContainsFunc(r.Models, g.Is)) && !slices.ContainsFunc(r.Not, g.Is)
	})
}

// withRecut tells with a held group which GPU would be cut for it, or why none would.
func withRecut(a groupAsk, g record.Group) record.Group {
	if g.Decision.Hold == nil || !a.ask.WantsMIG() || len(a.tx.Cluster.MIGNodeIDs()) == 0 {
		return g
	}
	m := MIGDemand(a.tx)
	key := a.key.String() + "/" + a.ask.Group
	own := withHost(a, wantsOf(a, a.ask.Count))
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
	if !a.ask.WantsMIG() || len(a.tx.Cluster.MIGNodeIDs()) == 0 {
		return false
	}
	wants := wantsOf(a, 1)
	return len(wants) > 0 && slices.ContainsFunc(a.tx.Cluster.MIGNodeIDs(), func(id string) bool {
		return !slices.ContainsFunc(wants, func(w miglayout.Want) bool {
			most := 0
			for _, d := range a.tx.Cluster.Node(id).MIG {
				for name, times := range w.On[d.GPU] {
					if p, _ := gpu.MIGProfileOf(d.Profiles, name); p.Allowed {
						most += p.Most * times
					}
				}
			}
			return most < w.Count
		})
	})
}

// notMade says why no instance that a group names is made for it; empty where it names none.
func notMade(a groupAsk) string {
	admits := func(id string) bool { return a.parts[0].Req.AdmittedBy(&a.tx.Cluster.Node(id).Plan) }
	for i := range a.parts {
		device := a.parts[i].Req.Device
		if mode, part, _ := gpu.ModeOfType(deviceType(device)); !part || mode == "" {
			continue
		}
		if !slices.ContainsFunc(a.tx.Cluster.MIGNodeIDs(), admits) {
			return "it may not run on the node of any GPU whose layout follows demand"
		}
		profile := admit.DeviceAsk{Name: device}.Profile()
		for _, id := range a.tx.Cluster.MIGNodeIDs() {
			for _, d := range a.tx.Cluster.Node(id).MIG {
				for k := range d.Offers {
					if o := &d.Offers[k]; o.Profile == profile && o.Parts > 0 {
						return fmt.Sprintf("no GPU whose layout follows demand offers %s: instances of that profile are %s, of %d parts each", device, o.Group(), o.Parts)
					}
				}
			}
		}
		return fmt.Sprintf("no GPU whose layout follows demand may be cut into %s as the job asks for it", device)
	}
	return ""
}

// withNotMade tells with a refusal why demand makes no instance either.
func withNotMade(a groupAsk, err error) error {
	var refusal *admit.Refusal
	if len(a.tx.Cluster.MIGNodeIDs()) == 0 || !errors.As(err, &refusal) {
		return err
	}
	if why := notMade(a); why != "" {
		refusal.Details = append(refusal.Details, why)
	}
	return err
}

// deviceType is the type in the name of a device block.
func deviceType(name string) string {
	words := strings.Split(name, "/")
	return words[min(1, len(words)-1)]
}
