// SPDX-License-Identifier: MPL-2.0

package miglayout

import (
	"slices"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// pin gives the first open wants, if they are of an allocation that takes several instances, their
// node, and its free instances.
func (d *decision) pin(open []Want) []Want {
	for len(open) > 0 && open[0].Alloc > 0 {
		node, first := d.together(open), open[0]
		var rest []Want
		for n := range open {
			w := &open[n]
			if w.Key != first.Key || w.Alloc != first.Alloc {
				rest = append(rest, *w)
				continue
			}
			if len(node) == 0 {
				d.left(*w, "no node has room for all instances that it takes together")
				continue
			}
			w.Alloc, w.Nodes = 0, node
			if w.Count -= d.takeFree(*w); w.Count > 0 {
				rest = append(rest, *w)
			} else {
				d.left(*w, instanceFree)
			}
		}
		open = rest
	}
	return open
}

// together is the node, as the only key, on which the first of some wants is served, with those
// that follow it of the same allocation: of the nodes that could have all of their instances, the
// one that has the most of them. It is empty where no node could.
func (d *decision) together(wants []Want) map[string]bool {
	n := 1
	for n < len(wants) && wants[n].Key == wants[0].Key && wants[n].Alloc == wants[0].Alloc {
		n++
	}
	best, most := map[string]bool{}, -1
	var seen []string
	for _, first := range d.gpus {
		node := first.Node
		if slices.Contains(seen, node) {
			continue
		}
		seen = append(seen, node)
		there, all := 0, true
		for _, w := range wants[:n] {
			have, could := 0, 0
			for _, g := range d.gpus {
				if g.Node == node && w.mayUse(g) {
					free := d.free(g, w)
					have, could = have+free, could+max(free, d.room(g, w))
				}
			}
			there, all = there+min(have, w.Count), all && could >= w.Count
		}
		if all && there > most {
			best, most = map[string]bool{node: true}, there
		}
	}
	return best
}

// free counts the instances of a GPU that are free for a want, or being made.
func (d *decision) free(g *GPU, w Want) (count int) {
	for n, at := range g.Coming {
		if !d.taken[coming(g, n)] {
			count += w.Times(g, at.Profile)
		}
	}
	if g.Cutting || g.Unready != "" {
		return count
	}
	for _, i := range g.Instances {
		if !i.Busy && !d.taken[i.UUID] {
			count += w.Times(g, i.Profile)
		}
	}
	return count
}

// room counts the instances that a GPU could be cut into for a want, of one of its profiles.
func (d *decision) room(g *GPU, w Want) (most int) {
	if g.Cutting || g.Unready != "" || slices.Contains(d.cut, g) {
		return 0
	}
	var fixed []Instance
	for _, i := range g.Instances {
		if i.Busy || d.taken[i.UUID] {
			fixed = append(fixed, i)
		}
	}
	for _, name := range w.Profiles {
		taken, count, known := occupied(g.Profiles, fixed)
		p, there := gpu.MIGProfileOf(g.Profiles, name)
		times := w.Times(g, name)
		if !known || !there || !p.Allowed || times == 0 {
			continue
		}
		n := 0
		for _, start := range p.Starts {
			if count[name]+n < p.Most && taken&mask(start, p.Size) == 0 {
				taken |= mask(start, p.Size)
				n++
			}
		}
		most = max(most, n*times)
	}
	return most
}
