// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"maps"
	"math"
	"slices"
)

// Panels are the plots of a live replay on a cluster of that many GPU milli: how
// much is allocated, to which queue, and how many tasks wait.
func (r *LiveResult) Panels(capacity int64) []Panel {
	used, waiting := Series{Name: "all"}, Series{Name: "tasks"}
	queues := map[string]*Series{}
	most := 1.0
	for i := range r.Timeline {
		m := &r.Timeline[i]
		used.Points = append(used.Points, Point{int(m.Second), percent(m.UsedMilli, capacity)})
		waiting.Points = append(waiting.Points, Point{int(m.Second), float64(m.Waiting)})
		most = max(most, float64(m.Waiting))
		for name, milli := range m.ByQueue {
			if queues[name] == nil {
				queues[name] = &Series{Name: name}
			}
			queues[name].Points = append(queues[name].Points, Point{int(m.Second), percent(milli, capacity)})
		}
	}
	allocated := Panel{Title: "GPU allocated, in percent of the cluster", Unit: "%", High: 100, Series: []Series{used}}
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		if name != "" {
			allocated.Series = append(allocated.Series, *queues[name])
		}
	}
	panels := []Panel{allocated, {Title: "Tasks that wait", High: math.Ceil(most/5) * 5, Series: []Series{waiting}}}
	for i := range panels {
		panels[i].Axis = Axis{"time of the trace, in hours", "h", 3600}
	}
	return panels
}
