package sim

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// Series is a named line of a plot.
type Series struct {
	Name   string
	Points []Point
}

// Panel is one chart of lines, over arrived demand unless it says over what.
type Panel struct {
	Title, Unit    string
	Over, OverUnit string
	Series         []Series
	Low, High      float64 // range of the y axis
	From           int     // where the x axis begins
}

// Heat is one row of cells per node: how full each GPU is, in milli.
type Heat struct {
	Title string
	Nodes [][]int64
}

const (
	plotWidth, panelHeight = 900, 320
	marginLeft, marginTop  = 60, 40
	innerWidth             = plotWidth - marginLeft - 160
	innerHeight            = panelHeight - marginTop - 50
)

// colours are distinguishable with the common colour blindnesses.
var colours = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// WriteSVG draws panels and heat maps below each other.
func WriteSVG(w io.Writer, panels []Panel, heats []Heat) error {
	var b strings.Builder
	y := 0
	for _, p := range panels {
		p.draw(&b, y)
		y += panelHeight
	}
	for _, h := range heats {
		y += h.draw(&b, y)
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, plotWidth, y, b.String())
	if err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}

func (p *Panel) draw(b *strings.Builder, top int) {
	over, unit := p.Over, p.OverUnit
	if over == "" {
		over, unit = "demand that has arrived, in percent of the GPUs", "%"
	}
	lastX := p.From + 1
	for _, s := range p.Series {
		for _, pt := range s.Points {
			lastX = max(lastX, pt.Arrived)
		}
	}
	x := func(arrived int) float64 {
		return marginLeft + float64(innerWidth)*float64(arrived-p.From)/float64(lastX-p.From)
	}
	y := func(v float64) float64 {
		v = min(max(v, p.Low), p.High)
		return float64(top+marginTop) + float64(innerHeight)*(p.High-v)/(p.High-p.Low)
	}
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" font-size=\"15\">%s</text>\n", marginLeft, top+24, html.EscapeString(p.Title))
	for i := range 6 {
		v := p.Low + (p.High-p.Low)*float64(i)/5
		fmt.Fprintf(b, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g%s</text>\n",
			marginLeft, marginLeft+innerWidth, y(v), y(v), marginLeft-6, y(v)+4, v, p.Unit)
	}
	for a := p.From; a <= lastX; a += tick(lastX - p.From) {
		fmt.Fprintf(b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d%s</text>\n", x(a), top+marginTop+innerHeight+18, a, unit)
	}
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\">%s</text>\n", marginLeft, top+marginTop+innerHeight+38, html.EscapeString(over))
	for i, s := range p.Series {
		var path strings.Builder
		for _, pt := range s.Points {
			if pt.Arrived < p.From {
				continue
			}
			fmt.Fprintf(&path, "%.1f,%.1f ", x(pt.Arrived), y(pt.Allocated))
		}
		c := colours[i%len(colours)]
		fmt.Fprintf(b, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" points=\"%s\"/><text x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n",
			c, path.String(), marginLeft+innerWidth+10, top+marginTop+16+18*i, c, html.EscapeString(s.Name))
	}
}

// draw paints the heat map and returns its height.
func (h *Heat) draw(b *strings.Builder, top int) int {
	const cell, gap = 5, 2
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" font-size=\"15\">%s (a column per node, a cell per GPU; dark is full)</text>\n",
		marginLeft, top+24, html.EscapeString(h.Title))
	perRow := (plotWidth - 2*marginLeft) / (cell + 1)
	y, tallest := top+marginTop, 0
	for i, gpus := range h.Nodes {
		if i > 0 && i%perRow == 0 {
			y += tallest*cell + gap
			tallest = 0
		}
		tallest = max(tallest, len(gpus))
		for g, used := range gpus {
			fmt.Fprintf(b, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>\n",
				marginLeft+i%perRow*(cell+1), y+g*cell, cell, cell-1, shade(used))
		}
	}
	return y + tallest*cell + 20 - top
}

// shade is a blue whose darkness is the part in use.
func shade(milli int64) string {
	milli = min(max(milli, 0), gpuMilli)
	return fmt.Sprintf("rgb(%d,%d,%d)", 235-227*milli/1000, 243-195*milli/1000, 250-143*milli/1000)
}

// HeatOf is the final state of a replay as a heat map.
func HeatOf(title string, nodes []Node, arrivals []Task, spots []Spot) Heat {
	h := Heat{Title: title}
	for _, n := range nodes {
		h.Nodes = append(h.Nodes, make([]int64, n.GPUs))
	}
	for i, s := range spots {
		for _, g := range s.GPUs {
			h.Nodes[s.Node][g] += arrivals[i].GPUMilli
		}
	}
	return h
}

// tick is the distance of the labels on an x axis of a length.
func tick(length int) int {
	for _, d := range []int{5, 10, 20, 50, 100} {
		if length/d < 14 {
			return d
		}
	}
	return max(1, length/14)
}
