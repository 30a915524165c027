// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"fmt"
	"html"
	"maps"
	"slices"
	"strings"
)

// Heat is the final state of a cluster: how full every GPU is, the nodes of a
// kind side by side.
type Heat struct {
	Title  string
	Groups []HeatGroup
}

// HeatGroup is the nodes of one model and number of GPUs, the fullest first.
type HeatGroup struct {
	Model string
	GPUs  int       // of a node
	Nodes [][]int64 // milli in use of every GPU, the fullest first
}

// HeatOf is the final state of a replay; the largest groups of nodes come first.
func HeatOf(title string, nodes []Node, arrivals []Task, spots []Spot) Heat {
	used := make([][]int64, len(nodes))
	for i, n := range nodes {
		used[i] = make([]int64, n.GPUs)
	}
	for i, s := range spots {
		for _, g := range s.GPUs {
			used[s.Node][g] += arrivals[i].GPUMilli
		}
	}
	type likeness struct {
		model string
		gpus  int
	}
	groups := map[likeness]*HeatGroup{}
	for i, n := range nodes {
		if n.GPUs == 0 {
			continue
		}
		k := likeness{n.Model, n.GPUs}
		if groups[k] == nil {
			groups[k] = &HeatGroup{Model: n.Model, GPUs: n.GPUs}
		}
		slices.SortFunc(used[i], descending)
		groups[k].Nodes = append(groups[k].Nodes, used[i])
	}
	h := Heat{Title: title}
	for _, g := range groups {
		slices.SortFunc(g.Nodes, func(a, b []int64) int {
			return cmp.Or(descending(total(a), total(b)), slices.CompareFunc(a, b, descending))
		})
		h.Groups = append(h.Groups, *g)
	}
	slices.SortFunc(h.Groups, func(a, b HeatGroup) int {
		return cmp.Or(cmp.Compare(b.capacity(), a.capacity()), cmp.Compare(a.Model, b.Model), cmp.Compare(a.GPUs, b.GPUs))
	})
	return h
}

func descending(a, b int64) int { return cmp.Compare(b, a) }

func total(milli []int64) int64 {
	var sum int64
	for _, m := range milli {
		sum += m
	}
	return sum
}

func (g *HeatGroup) capacity() int64 { return int64(len(g.Nodes)*g.GPUs) * gpuMilli }

func (g *HeatGroup) used() int64 {
	var sum int64
	for _, n := range g.Nodes {
		sum += total(n)
	}
	return sum
}

const (
	heatCell    = 6
	heatPitch   = heatCell + 1
	heatColumns = (plotWidth - marginLeft - 16) / heatPitch
)

// draw paints the heat map and returns its height: a column per node, a cell
// per GPU.
func (h *Heat) draw(b *strings.Builder, top int) int {
	heading(b, top, h.Title)
	drawScale(b, top+20)
	y := top + 54
	for i := range h.Groups {
		y = h.Groups[i].draw(b, y) + 20
	}
	return y - top
}

// draw paints the group below y and returns where it ends. The cells of a color
// are one path: large clusters have many.
func (g *HeatGroup) draw(b *strings.Builder, y int) int {
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\">%s</text>\n", marginLeft, y, html.EscapeString(fmt.Sprintf(
		"%s, nodes of %d: %.1f%% of %d GPUs allocated", g.Model, g.GPUs, percent(g.used(), g.capacity()), len(g.Nodes)*g.GPUs)))
	y += 8
	cells := map[string]*strings.Builder{} // by color
	for row := range slices.Chunk(g.Nodes, heatColumns) {
		for x, gpus := range row {
			for at, used := range gpus {
				color := shade(used)
				if cells[color] == nil {
					cells[color] = &strings.Builder{}
				}
				fmt.Fprintf(cells[color], "M%d %dh%[3]dv%[3]dh-%[3]dz", marginLeft+x*heatPitch, y+at*heatPitch, heatCell)
			}
		}
		y += g.GPUs*heatPitch + 4
	}
	for _, color := range slices.Sorted(maps.Keys(cells)) {
		fmt.Fprintf(b, "<path fill=\"%s\" d=\"%s\"/>\n", color, cells[color])
	}
	return y
}

// drawScale says what the colors of a heat map mean.
func drawScale(b *strings.Builder, y int) {
	x := plotWidth - 330
	for _, s := range []struct {
		name  string
		milli int64
	}{{"free", 0}, {"10%", 100}, {"50%", 500}, {"90%", 900}, {"full", gpuMilli}} {
		fmt.Fprintf(b, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\" stroke=\"%s\"/><text x=\"%d\" y=\"%d\">%s</text>\n",
			x, y, shade(s.milli), gridColor, x+19, y+12, s.name)
		x += 62
	}
}

// shade is the color of a GPU: dark when it is full, so that free capacity of
// the others shows, and the lighter the less is in use.
func shade(milli int64) string {
	if milli >= gpuMilli {
		return "#08306b"
	}
	part := func(free, nearlyFull int64) int64 { return free + (nearlyFull-free)*max(milli, 0)/gpuMilli }
	return fmt.Sprintf("rgb(%d,%d,%d)", part(255, 74), part(237, 163), part(190, 214))
}
