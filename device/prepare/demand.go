// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/config"
	"github.com/nomad-gpu/nomad-gpu/device/datafile"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// demands carries out orders to cut GPUs again, and remembers how far each is: a plugin that is
// killed between any two steps goes on, or undoes the first ones, when it is started again.
//
//	an order ──► cordon: the GPU takes no new work; Nomad hears of it
//	                │ the instances to be removed are free
//	                ▼
//	              cut: removed, made; done when a survey shows the new layout
//	                │ it fails
//	                ▼
//	              undo: made ones removed, removed ones made; then refused
//
// Each step is on disk before it begins, and can be repeated.
type demands struct {
	path  string
	saved []byte
	GPUs  map[string]*demandRecord
	// cordoned is since when this process has published the cordon.
	cordoned map[string]time.Time
	write    func(path string, f demandsFile, before []byte) ([]byte, error)
}

type demandsFile struct {
	Version int                      `json:"version"`
	GPUs    map[string]*demandRecord `json:"gpus"`
}

// demandRecord is the state of one GPU.
type demandRecord struct {
	// Layout is what the GPU had when it was last at rest, which a reboot forgets.
	Layout []gpu.MIGPlace `json:"layout"`
	Phase  phase          `json:"phase,omitempty"`
	Order  *gpu.MIGOrder  `json:"order,omitempty"`
	// Remove are the places of the order's instances.
	Remove []gpu.MIGPlace `json:"remove,omitempty"`
	Began  time.Time      `json:"began"`
	Why    string         `json:"why,omitempty"`
	// Refused is the order that was refused last, Seen are the latest that were dealt with.
	Refused string   `json:"refused,omitempty"`
	Seen    []string `json:"seen,omitempty"`
	Cuts    []int64  `json:"cuts,omitempty"`
}

type phase string

const (
	atRest     phase = ""
	cordonGPU  phase = "cordon"
	cutGPU     phase = "cut"
	undoCut    phase = "undo"
	demandsVer       = 1
	// remembered is how many orders that were dealt with are known by their IDs.
	remembered = 32
	// giveUp is how long a GPU is cordoned for an instance to become free.
	giveUp = time.Minute
	aDay   = 24 * time.Hour
)

func openDemands(dataDir string) (*demands, error) {
	d := &demands{path: filepath.Join(dataDir, "mig-layouts.json"), GPUs: map[string]*demandRecord{}, cordoned: map[string]time.Time{}, write: datafile.Write[demandsFile]}
	file, text, err := datafile.Read[demandsFile](d.path, demandsVer)
	if err != nil {
		return d, fmt.Errorf("read MIG layouts: %w", err)
	}
	if file.GPUs != nil {
		d.GPUs = file.GPUs
	}
	d.saved = text
	return d, nil
}

func (d *demands) save() (err error) {
	d.saved, err = d.write(d.path, demandsFile{demandsVer, d.GPUs}, d.saved)
	return err
}

func (d *demands) of(uuid string) *demandRecord {
	if d.GPUs[uuid] == nil {
		d.GPUs[uuid] = &demandRecord{}
	}
	return d.GPUs[uuid]
}

// target is the layout that an order makes.
func (r *demandRecord) target() []gpu.MIGPlace {
	stay := slices.DeleteFunc(slices.Clone(r.Layout), func(at gpu.MIGPlace) bool { return slices.Contains(r.Remove, at) })
	return append(stay, r.Order.Make...)
}

// end puts a GPU at rest.
func (r *demandRecord) end(id string) {
	r.Phase, r.Order, r.Remove, r.Began = atRest, nil, nil, time.Time{}
	if id == "" {
		return
	}
	if r.Seen = append(r.Seen, id); len(r.Seen) > remembered {
		r.Seen = r.Seen[len(r.Seen)-remembered:]
	}
}

func (r *demandRecord) refuse(id, why string) {
	r.end(id)
	r.Refused, r.Why = id, why
}

// demanding is a GPU whose layout follows demand, in one pass.
type demanding struct {
	*demandRecord
	u         *plan.Unit
	parts     []*plan.Unit
	rule      config.Rule
	profiles  []gpu.MIGProfile
	instances []gpu.MIGInstance
	// clear says that the survey and the places agree.
	clear bool
}

// followDemand carries orders on by one step each, and publishes the profiles that each GPU may have.
func (p *Preparer) followDemand(units []*plan.Unit, inputs plan.Inputs) {
	var all []*demanding
	for _, u := range units {
		rule := p.Config.RuleFor(u.GPU, u.Index)
		if u.Instance != nil || rule.Demand == nil || u.Gone || u.Sharing.Mode != gpu.ModeMIG {
			continue
		}
		g := &demanding{demandRecord: p.demands.of(u.UUID), u: u, rule: rule}
		for _, part := range units {
			if part.Parent == u.UUID {
				g.parts = append(g.parts, part)
			}
		}
		all = append(all, g)
	}
	for _, g := range all {
		p.look(g)
		p.step(g, all, inputs)
	}
	p.Report("MIG layouts", p.demands.save())
	for _, g := range all {
		p.tell(g)
	}
}

// look reads the places of a GPU's instances, and remembers the layout of one at rest.
func (p *Preparer) look(g *demanding) {
	if !g.u.GPU.Partitioned || plan.Unclear(g.u.GPU) {
		return
	}
	var err error
	g.profiles, g.instances, err = p.Platform.Recutter.MIGPlaces(g.u.UUID)
	p.Report("places of the MIG instances of "+g.u.UUID, err)
	for n := range g.profiles {
		g.profiles[n].Allowed = g.rule.Allows(g.profiles[n].Name)
		plan.Foretell(p.Config, g.rule, g.u.GPU, &g.profiles[n])
	}
	g.clear = err == nil && len(g.instances) == len(g.u.GPU.Partitions)
	for _, i := range g.instances {
		g.clear = g.clear && slices.ContainsFunc(g.u.GPU.Partitions, func(have hardware.Partition) bool { return have.UUID == i.UUID })
	}
	if g.clear && g.Phase == atRest && len(g.instances) > 0 {
		g.Layout = placesOf(g.instances)
	}
}

func placesOf(instances []gpu.MIGInstance) []gpu.MIGPlace {
	places := make([]gpu.MIGPlace, len(instances))
	for n, i := range instances {
		places[n] = i.MIGPlace
	}
	return places
}

// shows reports whether a GPU has a layout.
func (g *demanding) shows(layout []gpu.MIGPlace) bool {
	return g.clear && len(g.instances) == len(layout) && !slices.ContainsFunc(g.instances, func(i gpu.MIGInstance) bool { return !slices.Contains(layout, i.MIGPlace) })
}

func (p *Preparer) step(g *demanding, all []*demanding, inputs plan.Inputs) {
	switch g.Phase {
	case atRest:
		if len(g.u.GPU.Partitions) == 0 {
			p.begin(g)
			return
		}
		p.accept(g, all, inputs)
	case cordonGPU:
		if inputs.Client == nil || p.orderOf(g, inputs).ID != g.Order.ID {
			g.end("") // taken back
			return
		}
		p.cordon(g)
		since, known := p.demands.cordoned[g.u.UUID]
		if !known {
			since = p.Now()
			p.demands.cordoned[g.u.UUID] = since
		}
		if p.Now().Sub(since) < 2*p.Config.Health.Interval {
			return // Nomad's servers hear of it in this time
		}
		waits := p.inTheWay(g, inputs, true)
		switch {
		case waits == "" && g.clear:
			g.Phase = cutGPU
		case p.Now().Sub(g.Began) > giveUp:
			g.refuse(g.Order.ID, "it waited for "+cmp.Or(waits, "the driver to show all instances"))
		}
	case cutGPU:
		p.cordon(g)
		if g.shows(g.target()) {
			g.Cuts = append(g.Cuts, p.Now().Unix())
			g.Layout, g.Refused, g.Why = g.target(), "", ""
			p.Log.Info("a GPU was cut again", "gpu", g.u.UUID, "layout", g.Layout, "for", g.Order.For)
			g.end(g.Order.ID)
			return
		}
		// A GPU may have come into use where the plugin was away since the step was written down.
		if waits := p.inTheWay(g, inputs, true); waits != "" {
			g.Phase, g.Why = undoCut, "it waited for "+waits
			return
		}
		remove, target := slices.Clone(g.Remove), g.target()
		if _, err := p.background.do("recut "+g.u.UUID, "cut "+g.Order.ID, retryInterval, func() error { return p.Platform.Recutter.Recut(g.u.UUID, remove, target) }); err != nil {
			g.Phase, g.Why = undoCut, err.Error()
		}
	case undoCut:
		p.cordon(g)
		if g.shows(g.Layout) {
			g.refuse(g.Order.ID, g.Why)
			return
		}
		remove, before := slices.Clone(g.Order.Make), slices.Clone(g.Layout)
		_, err := p.background.do("recut "+g.u.UUID, "undo "+g.Order.ID, retryInterval, func() error { return p.Platform.Recutter.Recut(g.u.UUID, remove, before) })
		if err != nil {
			p.faults.add(g.u, gpu.Fault{Code: "mig-layout-failed", Message: "the GPU could not be cut (" + g.Why + "), nor could its former layout be made: " + err.Error(),
				Action: "see nvidia-smi mig -lgi; the plugin tries again every minute"})
		}
	}
}

// begin lays out a GPU without instances: as it was before a reboot, or with the largest
// instances that may be made.
func (p *Preparer) begin(g *demanding) {
	if g.u.Busy || len(g.u.Faults) > 0 || plan.Unclear(g.u.GPU) {
		return
	}
	layout := slices.Clone(g.Layout)
	if len(layout) == 0 {
		layout = largest(g.profiles)
	}
	var names []string
	for _, at := range layout {
		names = append(names, at.Profile)
	}
	input := "layout " + strings.Join(names, " ")
	_, err := p.background.do("recut "+g.u.UUID, input, retryInterval, func() error {
		if !g.u.GPU.Partitioned {
			return p.Platform.Partitioner.Layout(g.u.UUID, nil)
		}
		return p.Platform.Recutter.Recut(g.u.UUID, nil, layout)
	})
	if err != nil {
		p.faults.add(g.u, gpu.Fault{Code: "mig-layout-failed", Message: "the layout could not be made: " + err.Error(),
			Action: "compare profiles in the plugin's configuration with what the GPU knows (nvidia-smi mig -lgip)"})
	}
}

// largest fills a GPU with the largest instances that may be made.
func largest(profiles []gpu.MIGProfile) []gpu.MIGPlace {
	sorted := slices.DeleteFunc(slices.Clone(profiles), func(p gpu.MIGProfile) bool { return !p.Allowed })
	slices.SortStableFunc(sorted, func(a, b gpu.MIGProfile) int { return cmp.Or(b.Size-a.Size, strings.Compare(b.Name, a.Name)) })
	var layout []gpu.MIGPlace
	for _, p := range sorted {
		for _, start := range p.Starts {
			if next := append(slices.Clip(layout), gpu.MIGPlace{Profile: p.Name, Start: start}); gpu.CheckMIGPlaces(profiles, next) == nil {
				layout = next
			}
		}
	}
	return layout
}

// orderOf is the order that the node's metadata has for a GPU; without an ID where it has none.
func (p *Preparer) orderOf(g *demanding, inputs plan.Inputs) gpu.MIGOrder {
	text := inputs.Client.Orders[g.u.UUID]
	if text == "" {
		return gpu.MIGOrder{}
	}
	o, err := gpu.ParseMIGOrder(text)
	p.Report("MIG order for "+g.u.UUID, err)
	if err != nil {
		return gpu.MIGOrder{}
	}
	return o
}

// accept begins an order, or refuses it. One that only waits for other GPUs stays.
func (p *Preparer) accept(g *demanding, all []*demanding, inputs plan.Inputs) {
	if !g.clear || len(g.u.Faults) > 0 || inputs.Client == nil {
		return
	}
	o := p.orderOf(g, inputs)
	id := o.ID
	if id == "" || slices.Contains(g.Seen, id) {
		return
	}
	r := *g.demandRecord
	r.Order, r.Phase, r.Began = &o, cordonGPU, p.Now().UTC()
	for _, uuid := range o.Remove {
		at := slices.IndexFunc(g.instances, func(i gpu.MIGInstance) bool { return i.UUID == uuid })
		if at < 0 {
			g.refuse(id, "instance "+uuid+" is not there")
			return
		}
		r.Remove = append(r.Remove, g.instances[at].MIGPlace)
	}
	begun := 0
	for _, other := range all {
		if other.rule.Demand.Rule == g.rule.Demand.Rule && other.Phase != atRest {
			begun++
		}
	}
	proposed := *g
	proposed.demandRecord = &r
	if why := p.refusal(&proposed, all, inputs); why != "" {
		g.refuse(id, why)
		p.Log.Warn("a GPU is not cut again", "gpu", g.u.UUID, "order", id, "why", why)
		return
	}
	if begun >= g.rule.Demand.AtOnce {
		return
	}
	*g.demandRecord = r
	delete(p.demands.cordoned, g.u.UUID) // an earlier order's
	p.Log.Info("cutting a GPU again", "gpu", g.u.UUID, "remove", r.Remove, "make", o.Make, "for", o.For)
	p.cordon(g)
}

// refusal says why an order is not carried out; empty if it is.
func (p *Preparer) refusal(g *demanding, all []*demanding, inputs plan.Inputs) string {
	for _, at := range g.Order.Make {
		if slices.Contains(g.Remove, at) {
			return fmt.Sprintf("%s is removed and made", at)
		}
		if !g.rule.Allows(at.Profile) {
			return fmt.Sprintf("profile %q is not one that may be made", at.Profile)
		}
	}
	if err := gpu.CheckMIGPlaces(g.profiles, g.target()); err != nil {
		return err.Error()
	}
	today := 0
	for _, at := range g.Cuts {
		if p.Now().Sub(time.Unix(at, 0)) < aDay {
			today++
		}
	}
	if today >= g.rule.Demand.PerDay {
		return fmt.Sprintf("it was cut %d times within a day, as often as demand.per_day allows", today)
	}
	if missing := belowLeast(g, all); missing != "" {
		return fmt.Sprintf("demand.least: too few instances of %s would remain", missing)
	}
	return p.inTheWay(g, inputs, false)
}

// belowLeast names a profile with too few instances after an order, and fewer than before.
func belowLeast(g *demanding, all []*demanding) string {
	for _, name := range g.rule.Demand.Least {
		want := 0
		for _, other := range g.rule.Demand.Least {
			if other == name {
				want++
			}
		}
		before, after := 0, 0
		for _, other := range all {
			if other.rule.Demand.Rule != g.rule.Demand.Rule {
				continue
			}
			now, next := other.Layout, other.Layout
			if other.u == g.u {
				next = g.target()
			} else if other.Order != nil {
				now, next = other.target(), other.target()
			}
			before += count(now, name)
			after += count(next, name)
		}
		if after < want && after < before {
			return name
		}
	}
	return ""
}

func count(places []gpu.MIGPlace, profile string) int {
	n := 0
	for _, at := range places {
		if at.Profile == profile {
			n++
		}
	}
	return n
}

// cordon keeps new work off a GPU that is being cut, and ends the MPS daemons of the instances
// that are removed.
func (p *Preparer) cordon(g *demanding) {
	why := "it is being cut again for " + cmp.Or(g.Order.For, "order "+g.Order.ID)
	for _, u := range append([]*plan.Unit{g.u}, g.parts...) {
		if u.Cordon == "" {
			u.Cordon = why
		}
	}
	for _, u := range g.parts {
		u.Released = u.Released || g.removes(u)
	}
}

// removes reports whether a part is to go.
func (g *demanding) removes(u *plan.Unit) bool {
	going := g.Remove
	if g.Phase == undoCut {
		going = g.Order.Make
	}
	return slices.ContainsFunc(g.instances, func(i gpu.MIGInstance) bool { return i.UUID == u.UUID && slices.Contains(going, i.MIGPlace) })
}

// inTheWay says who has an instance that is to be removed; empty if no one does. Anything that
// cannot be seen is in the way. Before the GPU is cordoned MPS daemons are not.
func (p *Preparer) inTheWay(g *demanding, inputs plan.Inputs, cordoned bool) string {
	if inputs.LeasesReadAt.IsZero() || inputs.Client == nil {
		return "the tasks of this node to be known"
	}
	for _, u := range g.parts {
		if !g.removes(u) {
			continue
		}
		if alloc := inputs.Client.Holds(u.UUID); alloc != "" {
			return fmt.Sprintf("allocation %.8s, which has %s", alloc, u.UUID)
		}
		if inputs.Reserved[u.UUID].Any() {
			return u.UUID + ", which is reserved"
		}
		processes, err := p.Platform.Observer.Processes(u.Owner(), u.UUID)
		if err != nil {
			return "the driver to tell who is on " + u.UUID
		}
		for _, process := range processes {
			if cordoned || !p.Daemons.Server(process.PID) {
				return occupancy.ProgramText(process.PID) + " on " + u.UUID
			}
		}
	}
	return ""
}

// tell publishes the layout of a GPU, and the profiles that it may have.
func (p *Preparer) tell(g *demanding) {
	if !g.clear {
		return
	}
	d := &gpu.MIGDemand{GPU: g.u.UUID, Index: &g.u.Index, Profiles: g.profiles, Instances: g.instances, Least: g.rule.Demand.Least, Pool: g.rule.Demand.Rule,
		AtOnce: g.rule.Demand.AtOnce, PerDay: g.rule.Demand.PerDay, Refused: g.Refused, Why: g.Why}
	g.Cuts = slices.DeleteFunc(g.Cuts, func(at int64) bool { return p.Now().Sub(time.Unix(at, 0)) > aDay })
	d.Cuts = slices.Clone(g.Cuts)
	if g.Order != nil {
		d.Doing = g.Order.ID
	}
	for _, u := range append([]*plan.Unit{g.u}, g.parts...) {
		u.Demand = d
	}
}
