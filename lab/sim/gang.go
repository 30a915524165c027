// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place"
)

// gang is tasks that start together or not at all. The last that arrives waits for all.
type gang struct{ members, came []int }

// gather finds the gangs.
func (l *live) gather() error {
	l.gangs = map[string]*gang{}
	for i := range l.tasks {
		name := l.tasks[i].Gang
		if name == "" {
			continue
		}
		if l.gangs[name] == nil {
			l.gangs[name] = &gang{}
		}
		l.gangs[name].members = append(l.gangs[name].members, i)
	}
	for name, g := range l.gangs {
		if len(g.members) == 1 {
			delete(l.gangs, name)
		}
	}
	if len(l.gangs) > 0 && (l.evicts || l.Limits != nil) {
		return fmt.Errorf("replay gangs: only without priorities, quotas and bounds: a part of a gang might be evicted")
	}
	return nil
}

// complete notes that a task has arrived, and reports whether all of its gang have.
func (l *live) complete(i int) bool {
	g := l.gangs[l.tasks[i].Gang]
	if g == nil {
		return true
	}
	g.came = append(g.came, i)
	return len(g.came) == len(g.members)
}

// together starts a gang where there is room for all.
func (l *live) together(g *gang) bool {
	spots := make([]Spot, len(g.members))
	if planned, ok := l.placer.(*Planned); ok {
		if !planned.together(l.tasks, g.members, spots, l.now) {
			return false
		}
	} else {
		for k, i := range g.members {
			spot, ok := l.placer.Place(&l.tasks[i], l.now)
			if !ok {
				for k, i := range g.members[:k] {
					l.placer.End(&l.tasks[i], spots[k], l.now)
				}
				return false
			}
			spots[k] = spot
		}
	}
	for k, i := range g.members {
		l.begin(i, spots[k])
	}
	return true
}

// together books tasks where there is room for all of them.
func (p *Planned) together(tasks []Task, members []int, spots []Spot, now float64) bool {
	requests := make([]place.Request, len(members))
	for k, i := range members {
		requests[k] = RequestOf(&tasks[i], p.ids[&tasks[i]])
	}
	found, err := p.Planner.PlaceGang(requests)
	if err != nil {
		return false
	}
	for k, i := range members {
		if spots[k], err = p.book(&tasks[i], found[k].Usage, now); err != nil {
			return false // it cannot be: they were placed together
		}
	}
	return true
}
