// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"bytes"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

func TestAxesHaveRoundLabels(t *testing.T) {
	for _, c := range []struct {
		from, to float64
		most     int
		want     string
	}{
		{0, 100, 6, "0 20 40 60 80 100"},
		{80, 100, 6, "80 85 90 95 100"},
		{55, 100, 6, "60 70 80 90 100"},
		{0, 45, 6, "0 10 20 30 40"},
		{0, 1, 6, "0 0.2 0.4 0.6 0.8 1"},
		{80, 130, 14, "80 85 90 95 100 105 110 115 120 125 130"},
		{0, 281, 14, "0 50 100 150 200 250"},
	} {
		var labels []string
		for _, v := range ticks(c.from, c.to, c.most) {
			labels = append(labels, number(v))
		}
		if got := strings.Join(labels, " "); got != c.want {
			t.Errorf("from %g to %g: labels %s, want %s", c.from, c.to, got, c.want)
		}
	}
}

func TestHeatShowsTheFullestNodesOfAKindFirst(t *testing.T) {
	nodes := []Node{{Model: "T4", GPUs: 1}, {Model: "A100", GPUs: 2}, {Model: "A100", GPUs: 2}, {Model: "cpu"}}
	arrivals := []Task{{GPUs: 1, GPUMilli: 300}, {GPUs: 2, GPUMilli: 1000}, {GPUs: 1, GPUMilli: 400}, {CPUMilli: 1}}
	spots := []Spot{{Node: 1, GPUs: []int{1}}, {Node: 2, GPUs: []int{0, 1}}, {Node: -1}, {Node: 3}}
	want := []HeatGroup{
		{Model: "A100", GPUs: 2, Nodes: [][]int64{{1000, 1000}, {300, 0}}},
		{Model: "T4", GPUs: 1, Nodes: [][]int64{{0}}},
	}
	h := HeatOf("end", nodes, arrivals, spots)
	if !reflect.DeepEqual(h.Groups, want) {
		t.Errorf("groups %+v, want %+v", h.Groups, want)
	}
	var b bytes.Buffer
	if err := WriteSVG(&b, nil, []Heat{h}); err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"A100, nodes of 2: 57.5% of 4 GPUs allocated", "T4, nodes of 1: 0.0% of 1 GPUs allocated"} {
		if !strings.Contains(b.String(), says) {
			t.Errorf("the picture does not say %q", says)
		}
	}
}

// A line comes into a panel from the last point before it.
func TestCloserLooksBeginAtTheirLeftEdge(t *testing.T) {
	p := Panel{High: 100, From: 80, Series: []Series{{Name: "few points", Points: []Point{{33, 33}, {67, 67}, {133, 67}}}}}
	var b bytes.Buffer
	if err := WriteSVG(&b, []Panel{p}, nil); err != nil {
		t.Fatal(err)
	}
	if points := regexp.MustCompile(`points="(\S+) (\S+) "`).FindStringSubmatch(b.String()); points == nil || !strings.HasPrefix(points[1], "-") {
		t.Errorf("the line is drawn through %q, want the points of 67 and 133", points)
	}
}

// Lines of different names look different, however many there are.
func TestLinesLookDifferent(t *testing.T) {
	p := Panel{High: 100}
	for i := range 2 * len(colors) {
		p.Series = append(p.Series, Series{Name: strings.Repeat("x", i+1), Points: []Point{{0, 0}, {100, float64(i)}}})
	}
	var b bytes.Buffer
	if err := WriteSVG(&b, []Panel{p}, nil); err != nil {
		t.Fatal(err)
	}
	styles := map[string]bool{}
	for _, m := range regexp.MustCompile(`<polyline (.*) points`).FindAllStringSubmatch(b.String(), -1) {
		styles[m[1]] = true
	}
	if len(styles) != len(p.Series) {
		t.Errorf("%d lines have %d styles", len(p.Series), len(styles))
	}
}
