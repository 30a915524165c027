// SPDX-License-Identifier: MPL-2.0

package miglayout

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// Instance is an instance of a GPU.
type Instance struct {
	gpu.MIGInstance
	// Busy instances are in use or reserved, or it is not known whether they are.
	Busy bool
	// Until is when its work is likely to end; zero where that is not known.
	Until time.Time
}

// GPU is one whose layout follows demand.
type GPU struct {
	ID, Node  string
	Name      string // for people
	Profiles  []gpu.MIGProfile
	Instances []Instance
	// Pool names the GPUs that share Least and AtOnce: instances that must remain among them,
	// and how many of them may be cut at one time.
	Pool   string
	Least  []string
	AtOnce int
	// PerDay is how many of Cuts, its re-cuts, may be within a day; 0 is no bound.
	PerDay int
	Cuts   []time.Time
	// Coming are instances that are being made, or were a moment ago and are no use yet.
	Coming []gpu.MIGPlace
	// Cutting GPUs are being cut now. Unready ones are not to be touched, for that reason.
	Cutting bool
	Unready string
}

// coming names an instance that has no UUID yet.
func coming(g *GPU, n int) string { return fmt.Sprintf("%s#%d", g.ID, n) }

// Want is a request for instances that waits. Wants are in the order in which they are to
// start.
type Want struct {
	Key string
	// Also are the keys of wants that share instances with it.
	Also []string
	// Profiles are those that serve it, the best first. Why says what rules it out, if anything does.
	Profiles []string
	Count    int
	Since    time.Time
	Why      string
	// Nodes are those on which it may run; nil is all.
	Nodes map[string]bool
	// On is how many of Count an instance serves, by GPU and profile: several of one in slices.
	// Nil is one of each profile.
	On map[string]map[string]int
	// Alloc numbers the allocation, from 1, where one takes several instances: wants of one key
	// and allocation follow each other, and are served on one node. 0 is one instance each.
	Alloc int
}

// Keys are those of all wants that are served together.
func (w Want) Keys() []string { return append([]string{w.Key}, w.Also...) }

// Times is how many of a want an instance of a GPU serves.
func (w Want) Times(g *GPU, profile string) int {
	switch {
	case !slices.Contains(w.Profiles, profile):
		return 0
	case w.On != nil:
		return w.On[g.ID][profile]
	}
	return 1
}

// Instances is how many instances of its best profile a want takes.
func (w Want) Instances() int {
	times := 1
	for _, on := range w.On {
		times = max(times, on[w.Profiles[0]])
	}
	return (w.Count + times - 1) / times
}

// Join adds a want to others, in their order. One that is like an earlier one shares its instances, as
// far as these have parts left.
func Join(wants []Want, w Want) []Want {
	for i := range wants {
		o := &wants[i]
		both := *o
		both.Count += w.Count
		if o.Alloc+w.Alloc == 0 && o.Why+w.Why == "" && both.Instances() == o.Instances() && slices.Equal(o.Profiles, w.Profiles) &&
			maps.Equal(o.Nodes, w.Nodes) && maps.EqualFunc(o.On, w.On, maps.Equal) {
			o.Count, o.Also = both.Count, append(o.Also, w.Key)
			return wants
		}
	}
	return append(wants, w)
}

// Rules keep layouts from swinging between two kinds of work.
type Rules struct {
	// Patience is how long a request waits before a GPU is cut for it.
	Patience time.Duration
	// Rest is the shortest time between two re-cuts of a GPU.
	Rest time.Duration
}

// DefaultRules: a request that Nomad can place waits for less than Patience, and a job that
// was restarted in place has its instance back within Rest.
var DefaultRules = Rules{Patience: 5 * time.Second, Rest: time.Minute}

// Cut is one re-cut.
type Cut struct {
	GPU, Node string
	Remove    []string
	Make      []gpu.MIGPlace
	// For are the keys of the wants that it serves.
	For  []string
	Text string
}

// Answer has the re-cuts to make, and why there is none for other wants, by key.
type Answer struct {
	Cuts []Cut
	Left map[string]string
}

// day is the time in which re-cuts are counted.
const day = 24 * time.Hour

// Decide chooses re-cuts for the wants that no free instance serves. learned is how many
// instances of a profile are likely to be in use at one time.
func Decide(now time.Time, gpus []GPU, wants []Want, learned map[string]float64, rules Rules) Answer {
	d := &decision{now: now, rules: rules, learned: learned, answer: Answer{Left: map[string]string{}}, taken: map[string]bool{}}
	d.there = map[string]int{}
	for i := range gpus {
		d.gpus = append(d.gpus, &gpus[i])
		for _, instance := range gpus[i].Instances {
			d.there[instance.Profile]++
		}
	}
	slices.SortFunc(d.gpus, func(a, b *GPU) int { return strings.Compare(a.ID, b.ID) })
	var open []Want
	for _, w := range wants {
		switch {
		case w.Why != "":
			d.left(w, w.Why)
		case w.Alloc > 0:
			open = append(open, w)
		default:
			if w.Count -= d.takeFree(w); w.Count > 0 {
				open = append(open, w)
			} else {
				d.left(w, instanceFree)
			}
		}
	}
	for len(open) > 0 {
		if open = d.pin(open); len(open) == 0 {
			break
		}
		w := &open[0]
		cut := d.best(open)
		if cut == nil {
			open = open[1:]
			continue
		}
		d.answer.Cuts = append(d.answer.Cuts, cut.Cut)
		d.cut = append(d.cut, cut.gpu)
		for i, n := range cut.served {
			open[i].Count -= n
		}
		if w.Count > 0 {
			continue // more of the same
		}
		open = slices.DeleteFunc(open, func(w Want) bool { return w.Count <= 0 })
	}
	return d.answer
}

const instanceFree = "an instance is free or being made for it"

// left says why no GPU is cut for a want.
func (d *decision) left(w Want, why string) {
	for _, key := range w.Keys() {
		d.answer.Left[key] = why
	}
}

type decision struct {
	now     time.Time
	rules   Rules
	gpus    []*GPU
	learned map[string]float64
	answer  Answer
	// taken are free instances that a want is going to have, by UUID.
	taken map[string]bool
	// there counts all instances by profile.
	there map[string]int
	// cut are the GPUs that are being cut by this decision.
	cut []*GPU
}

// takeFree gives free instances, and those that are being made, to a want, and counts them.
func (d *decision) takeFree(w Want) int {
	count := 0
	for _, profile := range w.Profiles {
		for _, g := range d.gpus {
			times := w.Times(g, profile)
			if !w.mayUse(g) || times == 0 {
				continue
			}
			for n, at := range g.Coming {
				if count < w.Count && at.Profile == profile && !d.taken[coming(g, n)] {
					d.taken[coming(g, n)] = true
					count += times
				}
			}
			if g.Cutting || g.Unready != "" {
				continue
			}
			for _, i := range g.Instances {
				if count < w.Count && i.Profile == profile && !i.Busy && !d.taken[i.UUID] {
					d.taken[i.UUID] = true
					count += times
				}
			}
		}
	}
	return count
}

func (w Want) mayUse(g *GPU) bool { return w.Nodes == nil || w.Nodes[g.Node] }

// allowedOn reports whether a GPU may be cut into instances that serve a want.
func (w Want) allowedOn(g *GPU) bool {
	return slices.ContainsFunc(w.Profiles, func(name string) bool {
		p, known := gpu.MIGProfileOf(g.Profiles, name)
		return known && p.Allowed && w.Times(g, name) > 0
	})
}

// candidate is a re-cut of a GPU, and how many of each open want it serves.
type candidate struct {
	Cut
	gpu    *GPU
	served []int
	worth  float64
}

// best is the re-cut that serves the first of the open wants and is worth the most; nil where
// there is none, which is explained.
func (d *decision) best(open []Want) *candidate {
	w := &open[0]
	if waited := d.now.Sub(w.Since); waited < d.rules.Patience {
		d.left(*w, "it waits for a moment only")
		return nil
	}
	var best *candidate
	why := reasons{}
	for _, g := range d.gpus {
		if !w.mayUse(g) {
			why.add(0, "it may not run on the node of any GPU whose layout follows demand")
			continue
		}
		if !w.allowedOn(g) {
			why.add(1, "no GPU whose layout follows demand may be cut into "+strings.Join(w.Profiles, " or "))
			continue
		}
		if no := d.keeps(g); no != "" {
			why.add(3, g.Name+" "+no)
			continue
		}
		c, no := d.recut(g, open)
		if c == nil {
			why.add(2, no)
		} else if best == nil || c.worth > best.worth {
			best = c
		}
	}
	if best == nil {
		d.left(*w, cmp.Or(why.best(), "no GPU's layout follows demand"))
	}
	return best
}

// reasons are why nothing is done, the most useful last.
type reasons map[int]string

func (r reasons) add(rank int, why string) {
	if r[rank] == "" {
		r[rank] = why
	}
}

func (r reasons) best() string {
	for rank := 3; rank >= 0; rank-- {
		if r[rank] != "" {
			return r[rank]
		}
	}
	return ""
}

// keeps says why a GPU keeps its layout whoever waits.
func (d *decision) keeps(g *GPU) string {
	atOnce := 0
	for _, other := range d.gpus {
		if other.Pool == g.Pool && (other.Cutting || slices.Contains(d.cut, other)) {
			atOnce++
		}
	}
	today, latest := 0, time.Time{}
	for _, at := range g.Cuts {
		if d.now.Sub(at) < day {
			today++
		}
		if at.After(latest) {
			latest = at
		}
	}
	switch {
	case g.Unready != "":
		return g.Unready
	case g.AtOnce > 0 && atOnce >= g.AtOnce:
		return fmt.Sprintf("waits: %d GPUs are being cut, and the operator allows %d at once", atOnce, g.AtOnce)
	case g.Cutting || slices.Contains(d.cut, g):
		return "is being cut"
	case g.PerDay > 0 && today >= g.PerDay:
		return fmt.Sprintf("was cut %d times within a day, as often as the operator allows", today)
	case d.now.Sub(latest) < d.rules.Rest:
		return "was cut a moment ago"
	}
	return ""
}

// recut is the best layout of a GPU that serves the first want; the text says why there is
// none.
func (d *decision) recut(g *GPU, open []Want) (*candidate, string) {
	var fixed []Instance
	for _, i := range g.Instances {
		if i.Busy || d.taken[i.UUID] {
			fixed = append(fixed, i)
		}
	}
	if !fitsBeside(g, fixed, open[0]) {
		return nil, d.whyNot(g, open[0], nil)
	}
	var best *candidate
	least := d.mustKeep(g)
	for _, layout := range arrangements(g.Profiles, fixed) {
		c := d.weigh(g, layout, open, least)
		if c != nil && (best == nil || c.worth > best.worth) {
			best = c
		}
	}
	if best != nil {
		best.Text = fmt.Sprintf("%s is cut again for %s: %s", g.Name, strings.Join(best.For, ", "), describe(g, best.Cut))
		return best, ""
	}
	return nil, d.whyNot(g, open[0], least)
}

// whyNot says why no layout of a GPU serves a want.
func (d *decision) whyNot(g *GPU, w Want, least map[string]int) string {
	busy, until, known := 0, d.now, true
	for _, i := range g.Instances {
		if !i.Busy && !d.taken[i.UUID] {
			continue
		}
		busy++
		known = known && !i.Until.IsZero()
		if i.Until.After(until) {
			until = i.Until
		}
	}
	switch {
	case busy == 0 && len(least) > 0:
		return g.Name + ": the operator wants other instances to remain"
	case busy == 0:
		return fmt.Sprintf("%s has no place for %s", g.Name, strings.Join(w.Profiles, " or "))
	case known:
		return fmt.Sprintf("%d instances of %s are in use; it would be empty in about %s", busy, g.Name, until.Sub(d.now).Round(time.Minute))
	}
	return fmt.Sprintf("%d instances of %s are in use, and leave no place for %s", busy, g.Name, strings.Join(w.Profiles, " or "))
}

// mustKeep counts the instances that must be on this GPU after a re-cut, by profile: those
// that the operator wants to remain and that the other GPUs of its pool do not have.
func (d *decision) mustKeep(g *GPU) map[string]int {
	need := map[string]int{}
	for _, name := range g.Least {
		need[name]++
	}
	here := map[string]int{}
	for _, other := range d.gpus {
		if other.Pool != g.Pool || len(need) == 0 {
			continue
		}
		for _, i := range other.Instances {
			if other == g {
				here[i.Profile]++
			} else {
				need[i.Profile]--
			}
		}
	}
	for name, n := range need {
		if n = min(n, here[name]); n > 0 { // instances that are missing already are no reason to cut
			need[name] = n
		} else {
			delete(need, name)
		}
	}
	return need
}

// Weights of a layout. Waiting work comes before learned demand, and instances stay where
// nothing speaks for another layout.
const (
	perWaiting = 100.0
	perOther   = 10.0 // for each memory slice by which an instance is not of the best profile
	perLearned = 3.0
	perRemoved = 1.0
	perUnused  = 0.5
)

// weigh is what a layout is worth; nil where it does not serve the first want, or removes
// instances that must remain.
func (d *decision) weigh(g *GPU, layout []gpu.MIGPlace, open []Want, least map[string]int) *candidate {
	c := &candidate{gpu: g, served: make([]int, len(open)), Cut: Cut{GPU: g.ID, Node: g.Node}}
	free, have := map[string]int{}, map[string]int{} // instances without work, and all
	stays := func(i Instance) bool { return slices.Contains(layout, i.MIGPlace) }
	for _, i := range g.Instances {
		switch {
		case i.Busy || d.taken[i.UUID]:
			have[i.Profile]++
		case !stays(i):
			c.Remove = append(c.Remove, i.UUID)
		}
	}
	for _, at := range layout {
		free[at.Profile]++
		have[at.Profile]++
		if !slices.ContainsFunc(g.Instances, func(i Instance) bool { return i.MIGPlace == at && !i.Busy && !d.taken[i.UUID] }) {
			c.Make = append(c.Make, at)
		}
	}
	for name, n := range least {
		if have[name] < n {
			return nil
		}
	}
	size := func(name string) float64 {
		p, _ := gpu.MIGProfileOf(g.Profiles, name)
		return float64(p.Size)
	}
	for i, w := range open {
		if !w.mayUse(g) || w.Alloc > 0 { // its node is chosen when it is its turn
			continue
		}
		best := size(w.Profiles[0])
		for _, name := range w.Profiles {
			times := w.Times(g, name)
			for times > 0 && free[name] > 0 && c.served[i] < w.Count {
				free[name]--
				c.served[i] = min(c.served[i]+times, w.Count)
				c.worth += cmp.Or(best, size(name))*perWaiting - math.Abs(size(name)-best)*perOther
			}
		}
		keys := w.Keys()
		c.For = append(c.For, keys[:min(c.served[i], len(keys))]...)
		if i == 0 && c.served[0] == 0 {
			return nil
		}
	}
	for name, n := range free {
		wanted := d.learned[name] - float64(d.there[name])
		for _, i := range g.Instances {
			if i.Profile == name {
				wanted++
			}
		}
		c.worth += min(float64(n), max(0, wanted)) * size(name) * perLearned
	}
	slicesOf := 0.0
	for _, at := range layout {
		slicesOf += size(at.Profile)
	}
	c.worth += slicesOf*perUnused - float64(len(c.Remove))*perRemoved - float64(len(c.Make))*perRemoved/8
	return c
}

// fitsBeside reports whether an instance for a want has a place beside fixed ones.
func fitsBeside(g *GPU, fixed []Instance, w Want) bool {
	taken, count, known := occupied(g.Profiles, fixed)
	return known && slices.ContainsFunc(w.Profiles, func(name string) bool {
		p, there := gpu.MIGProfileOf(g.Profiles, name)
		return there && p.Allowed && w.Times(g, name) > 0 && count[name] < p.Most && slices.ContainsFunc(p.Starts, func(start int) bool { return taken&mask(start, p.Size) == 0 })
	})
}

// occupied are the memory slices of instances, a bit for each, and how many there are of each
// profile; known is false where the size of one is not.
func occupied(profiles []gpu.MIGProfile, fixed []Instance) (taken uint64, count map[string]int, known bool) {
	count = map[string]int{}
	for _, i := range fixed {
		p, there := gpu.MIGProfileOf(profiles, i.Profile)
		if !there {
			return 0, nil, false
		}
		taken |= mask(i.Start, p.Size)
		count[i.Profile]++
	}
	return taken, count, true
}

// arrangements are all ways to lay out a GPU beside fixed instances, those included that leave
// room.
func arrangements(profiles []gpu.MIGProfile, fixed []Instance) [][]gpu.MIGPlace {
	taken, count, known := occupied(profiles, fixed)
	if !known {
		return nil
	}
	var all [][]gpu.MIGPlace
	var extend func(at int, taken uint64, layout []gpu.MIGPlace)
	extend = func(at int, taken uint64, layout []gpu.MIGPlace) {
		if at >= maxSlices {
			all = append(all, layout)
			return
		}
		extend(at+1, taken, layout)
		for _, p := range profiles {
			if !p.Allowed || count[p.Name] >= p.Most || !slices.Contains(p.Starts, at) || taken&mask(at, p.Size) != 0 {
				continue
			}
			count[p.Name]++
			extend(at+1, taken|mask(at, p.Size), append(slices.Clip(layout), gpu.MIGPlace{Profile: p.Name, Start: at}))
			count[p.Name]--
		}
	}
	extend(0, taken, nil)
	return all
}

// maxSlices is how many memory slices the largest GPUs have.
const maxSlices = 8

func mask(start, size int) uint64 { return (1<<size - 1) << start }

// describe says what a re-cut changes: "1g.10gb, 1g.10gb become 2g.20gb".
func describe(g *GPU, c Cut) string {
	var before, after []string
	for _, i := range g.Instances {
		if slices.Contains(c.Remove, i.UUID) {
			before = append(before, i.Profile)
		}
	}
	for _, at := range c.Make {
		after = append(after, at.Profile)
	}
	if len(before) == 0 {
		return "free slices become " + strings.Join(after, ", ")
	}
	return strings.Join(before, ", ") + " become " + strings.Join(after, ", ")
}
