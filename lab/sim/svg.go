// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// Series is a named line of a plot.
type Series struct {
	Name   string
	Points []Point
}

// Panel is one chart of lines, over arrived demand unless it says over what.
type Panel struct {
	Title, Unit string // the unit of the y axis
	Axis        Axis
	Series      []Series
	Low, High   float64 // range of the y axis
	From        int     // where the x axis begins
	Mark        int     // where a dashed line stands; 0: nowhere
	Last        bool    // the legend shows what the lines end at
}

// Axis is what an x axis shows.
type Axis struct {
	Name, Unit string
	Per        int // how much of a Point's Arrived is one unit
}

// demandAxis is that of plots over arrived demand.
var demandAxis = Axis{"GPU demand that has arrived, in percent of the cluster's GPUs", "%", 1}

const (
	plotWidth, panelHeight = 1160, 380
	marginLeft, marginTop  = 64, 48
	innerWidth             = plotWidth - marginLeft - 180
	innerHeight            = panelHeight - marginTop - 64
)

// colors are distinguishable with the common color blindnesses. Lines beyond
// them are dashed.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a8a8a"}

const axisColor, gridColor = "#888", "#ddd"

// WriteSVG draws panels and heat maps below each other.
func WriteSVG(w io.Writer, panels []Panel, heats []Heat) error {
	var b strings.Builder
	y := 0
	for i := range panels {
		panels[i].draw(&b, y)
		y += panelHeight
	}
	for i := range heats {
		y += heats[i].draw(&b, y)
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="13">
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, plotWidth, y, plotWidth, y, b.String())
	if err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}

// frame is where a panel's points lie on the page.
type frame struct {
	*Panel
	top   int
	lastX int
}

func (f *frame) x(arrived int) float64 {
	return marginLeft + innerWidth*float64(arrived-f.From)/float64(f.lastX-f.From)
}

func (f *frame) y(v float64) float64 {
	return float64(f.top+marginTop) + innerHeight*(f.High-v)/(f.High-f.Low)
}

func (p *Panel) draw(b *strings.Builder, top int) {
	f := frame{Panel: p, top: top, lastX: p.From + 1}
	if p.Axis.Per == 0 {
		p.Axis = demandAxis
	}
	for _, s := range p.Series {
		for _, pt := range s.Points {
			f.lastX = max(f.lastX, pt.Arrived)
		}
	}
	heading(b, top, p.Title)
	f.axes(b)
	for i, s := range p.Series {
		f.line(b, i, &s)
	}
}

func heading(b *strings.Builder, top int, text string) {
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" font-size=\"17\" font-weight=\"bold\">%s</text>\n", marginLeft, top+30, html.EscapeString(text))
}

func (f *frame) axes(b *strings.Builder) {
	bottom := f.y(f.Low)
	for _, v := range ticks(f.Low, f.High, 6) {
		fmt.Fprintf(b, "<path d=\"M%d %.1fh%d\" stroke=\"%s\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
			marginLeft, f.y(v), innerWidth, gridColor, marginLeft-8, f.y(v)+4, number(v)+f.Unit)
	}
	per := float64(f.Axis.Per)
	for _, v := range ticks(float64(f.From)/per, float64(f.lastX)/per, 14) {
		x := f.x(int(v * per))
		fmt.Fprintf(b, "<path d=\"M%.1f %.1fv5\" stroke=\"%s\"/><text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
			x, bottom, axisColor, x, bottom+20, number(v)+f.Axis.Unit)
	}
	fmt.Fprintf(b, "<path d=\"M%d %.1fV%.1fh%d\" fill=\"none\" stroke=\"%s\"/>\n", marginLeft, f.y(f.High), bottom, innerWidth, axisColor)
	fmt.Fprintf(b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", marginLeft+innerWidth/2, bottom+42, html.EscapeString(f.Axis.Name))
	if f.Mark != 0 && f.Mark < f.lastX {
		fmt.Fprintf(b, "<path d=\"M%.1f %.1fV%.1f\" stroke=\"%s\" stroke-dasharray=\"4 4\"/>\n", f.x(f.Mark), f.y(f.High), bottom, axisColor)
	}
}

// line draws the i-th series and its entry in the legend. What lies outside the
// panel is cut off.
func (f *frame) line(b *strings.Builder, i int, s *Series) {
	var points strings.Builder
	for at, pt := range s.Points {
		// The last point before the panel is where the line comes in from.
		if pt.Arrived >= f.From || at+1 < len(s.Points) && s.Points[at+1].Arrived > f.From {
			fmt.Fprintf(&points, "%.1f,%.1f ", f.x(pt.Arrived)-marginLeft, f.y(pt.Allocated)-f.y(f.High))
		}
	}
	style := fmt.Sprintf("fill=\"none\" stroke=\"%s\" stroke-width=\"2\"", colors[i%len(colors)])
	if i >= len(colors) {
		style += " stroke-dasharray=\"6 3\""
	}
	fmt.Fprintf(b, "<svg x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\"><polyline %s points=\"%s\"/></svg>\n",
		marginLeft, f.y(f.High), innerWidth, innerHeight, style, points.String())
	x, y := marginLeft+innerWidth+14, f.top+marginTop+14+20*i
	fmt.Fprintf(b, "<path d=\"M%d %dh18\" %s/><text x=\"%d\" y=\"%d\">%s</text>\n", x, y-4, style, x+24, y, html.EscapeString(s.Name))
	if f.Last && len(s.Points) > 0 {
		last := s.Points[len(s.Points)-1].Allocated
		fmt.Fprintf(b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.1f%s</text>\n", plotWidth-8, y, last, f.Unit)
	}
}

// ticks are the round values at equal distances from one end of an axis to the
// other that get a label: the distance is 1, 2 or 5 times a power of ten and
// goes at most so often into the axis.
func ticks(from, to float64, most int) []float64 {
	unit := math.Pow(10, math.Floor(math.Log10((to-from)/float64(most))))
	step := 10 * unit
	for _, d := range []float64{5, 2, 1} {
		if (to-from)/(d*unit) <= float64(most) {
			step = d * unit
		}
	}
	var out []float64
	for i := math.Ceil(from / step); i*step <= to; i++ {
		out = append(out, i*step)
	}
	return out
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
