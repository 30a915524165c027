// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/decide"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// In a cluster that Nomad does not look at as a whole, the candidates are
// narrowed, hold the preferred node, and are widened when none of them is left.
func TestCandidates(t *testing.T) {
	var machines []*nomad.Node
	for i := range 150 {
		machines = append(machines, servicetest.Machine(fmt.Sprintf("m%03d", i), 1))
	}
	b := servicetest.New(t, "placement {\n candidates = 10\n}", machines...)
	a := servicetest.Ask("job", "8G", 1)
	d := b.Submit(t, a)
	if len(d.Candidates) != 10 || !slices.Contains(d.Candidates, d.Preferred[0]) {
		t.Fatalf("candidates %v, preferred %v", d.Candidates, d.Preferred)
	}
	b.Register(a)
	b.Run(a, "alloc", strings.TrimPrefix(d.Preferred[0], "id-"), 0, 0, 8)
	for _, id := range d.Candidates {
		dead := servicetest.Machine(strings.TrimPrefix(id, "id-"), 1)
		dead.Index, dead.Plan.Ineligible, dead.View.Status = 2, true, "down"
		b.State.Apply([]nomad.Change{{Node: dead}}, 50)
	}
	b.End("alloc")
	b.Block(a, 1)
	due := b.Next(nil, true)
	if due == nil || !due.Revision.Retry {
		t.Fatalf("all candidates are dead, and due is %+v", due)
	}
	again, err := b.Revise(t.Context(), []admit.Ask{a}, due.Revision)
	if err != nil || again == nil || slices.Contains(d.Candidates, again[0].Preferred[0]) {
		t.Fatalf("got %+v, %v", again, err)
	}
	if !reflect.DeepEqual(again[0].Tasks, d.Tasks) {
		t.Errorf("the device blocks changed:\nfrom %+v\nto   %+v", d.Tasks, again[0].Tasks)
	}
}

// In a large cluster a group's candidates are the preferred node, then nodes with room now, then
// nodes that have room when others end, as they follow each other from the group's own start on.
// Four times as many nodes as candidates are looked at for room now, and more only where fewer
// would do at all.
func TestOfManyNodesThoseWithRoomAreCandidates(t *testing.T) {
	const nodes, limit = 150, 10
	from := func(first, n int) (list []int) {
		for i := range n {
			list = append(list, first+i)
		}
		return list
	}
	name := func(at int) string { return fmt.Sprintf("m%03d", at%nodes) }
	// submit has a group decided about where some nodes have room, some never will, and the others
	// when their work ends.
	submit := func(t *testing.T, room, never []int) admit.Decision {
		var machines []*nomad.Node
		for i := range nodes {
			machines = append(machines, servicetest.Machine(name(i), map[bool]int{false: 1}[slices.Contains(never, i)]))
		}
		s := servicetest.New(t, "placement {\n candidates = 10\n}", machines...)
		for i := range nodes {
			if !slices.Contains(room, i) && !slices.Contains(never, i) {
				a := servicetest.Ask(fmt.Sprintf("on-%d", i), "1", 1)
				s.Show(a, false)
				s.Run(a, "alloc-"+a.JobID, name(i), 0, 0, 16)
			}
		}
		return s.Submit(t, servicetest.Ask("job", "8G", 1))
	}
	full := submit(t, nil, nil).Candidates
	start := slices.IndexFunc(from(0, nodes), func(at int) bool {
		return !slices.Contains(full, "id-"+name(at+nodes-1)) && slices.Contains(full, "id-"+name(at))
	})
	for text, row := range map[string]struct {
		room, never, want []int // counted from the group's start
	}{
		"none has room":                         {want: from(0, limit)},
		"a few have room":                       {room: from(20, 4), want: append(from(20, 4), from(0, 6)...)},
		"more than enough have room":            {room: from(5, 30), want: from(5, limit)},
		"the last that is looked at":            {room: []int{15, 39}, want: append([]int{15, 39}, from(0, 8)...)},
		"the next one is not":                   {room: []int{15, 40}, want: from(0, 9)},
		"few can ever take it":                  {never: append(from(0, 50), from(60, 90)...), want: from(50, limit)},
		"just enough can take it in their time": {never: append(from(10, 31), from(43, 107)...), room: from(41, 2), want: from(0, 9)},
		"too few can":                           {never: append(from(9, 32), from(43, 107)...), room: from(41, 2), want: append(from(41, 2), from(0, 8)...)},
	} {
		t.Run(text, func(t *testing.T) {
			at := func(offsets []int) (list []int) {
				for _, o := range offsets {
					list = append(list, (start+o)%nodes)
				}
				return list
			}
			d := submit(t, at(row.room), at(row.never))
			var want []string
			for _, i := range at(row.want) {
				want = append(want, "id-"+name(i))
			}
			for _, id := range d.Preferred {
				if !slices.Contains(want, id) {
					want = append(want[:min(len(want), limit-1)], id)
				}
			}
			slices.Sort(want)
			if !slices.Equal(d.Candidates, want) {
				t.Errorf("the candidates are %v, want %v; %v is preferred", d.Candidates, want, d.Preferred)
			}
		})
	}
}

// What runs of a group stays where it is when the rest of it gets other candidates: Nomad would
// replace what runs on a node that is none.
func TestNodesWhereAGroupRunsStayCandidates(t *testing.T) {
	var machines []*nomad.Node
	for i := range 150 {
		machines = append(machines, servicetest.Machine(fmt.Sprintf("m%03d", i), 1))
	}
	s := servicetest.New(t, "placement {\n candidates = 10\n}", machines...)
	a := servicetest.Ask("job", "1", 2)
	s.Submit(t, a)
	s.Register(a)
	for _, at := range []int{0, 40, 80, 120} { // far from each other: some are not among ten that follow each other
		on := fmt.Sprintf("m%03d", at)
		s.Run(a, "alloc-"+on, on, 0, 0, 16)
		s.Block(a, 1)
		d, err := s.Revise(t.Context(), []admit.Ask{a}, decide.Revision{Group: a.Group, Retry: true})
		if err != nil {
			t.Fatal(err)
		}
		if d != nil && len(d[0].Candidates) > 0 && (!slices.Contains(d[0].Candidates, "id-"+on) || len(d[0].Candidates) > 10) {
			t.Errorf("it runs on %s, and its candidates are %v", on, d[0].Candidates)
		}
		s.End("alloc-" + on)
	}
}
