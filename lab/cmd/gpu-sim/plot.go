// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
	"math"

	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/lab/sim"
)

// fillsUp is from where of the demand a closer look at the allocation begins,
// and whole is where all GPUs are asked for; both in percent.
const fillsUp, whole = 80, 100

// plot draws what the policies did with a workload.
func plot(path string, w *sim.Workload, reports []report) error {
	history := w.History
	if len(history) == 0 {
		history = w.Arrivals
	}
	panel := func(title string) sim.Panel { return sim.Panel{Title: title, Unit: "%", High: 100, Mark: whole} }
	allocated := panel("GPU allocated, in percent of the cluster")
	unusable := panel("Free GPU that a typical task cannot use, in percent of the free GPU")
	var heats []sim.Heat
	for _, r := range reports {
		allocated.Series = append(allocated.Series, sim.Series{Name: r.Policy, Points: r.result.Curve})
		unusable.Series = append(unusable.Series, sim.Series{Name: r.Policy, Points: sim.Fragmentation(w.Nodes, history, w.Arrivals, r.result.Spots)})
		title := fmt.Sprintf("Every GPU at the end, under %s: %.1f%% allocated", r.Policy, r.Final)
		heats = append(heats, sim.HeatOf(title, w.Nodes, w.Arrivals, r.result.Spots))
	}
	allocated.Last = true
	panels := []sim.Panel{allocated}
	if !math.IsNaN(float64(reports[0].At100)) {
		panels = append(panels, closer(allocated, reports))
	}
	panels = append(panels, unusable)
	return command.WriteFile(path, func(f io.Writer) error { return sim.WriteSVG(f, panels, heats) })
}

// closer is the part of a panel in which policies differ.
func closer(p sim.Panel, reports []report) sim.Panel {
	least := p.High
	for _, r := range reports {
		least = min(least, r.Final)
	}
	p.Title, p.From = "GPU allocated, while the cluster fills up", fillsUp
	p.Low = max(0, 5*math.Floor(least/5)-5)
	return p
}
