// SPDX-License-Identifier: MPL-2.0

package outlook

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// busy books a whole GPU of a node each for some tasks, and says how long they have left
// by their ID: so many minutes, for certain; 0: not known.
func busy(t *testing.T, s *cluster.Snapshot, node string, minutes ...int) func(*cluster.Usage) forecast.Remaining {
	t.Helper()
	for i, m := range minutes {
		u := cluster.Usage{ID: fmt.Sprintf("%s-%d-%d", node, i, m), NodeID: node, CPUMHz: 1000, Takes: []cluster.Take{{GPU: i, Milli: 1000, Slices: 80}}}
		if err := s.Apply(u); err != nil {
			t.Fatal(err)
		}
	}
	return func(u *cluster.Usage) forecast.Remaining {
		var i, m int
		if _, err := fmt.Sscanf(u.ID[len(u.NodeID):], "-%d-%d", &i, &m); err != nil {
			t.Fatal(err)
		}
		return certain(m)
	}
}

// snapshot is a cluster of nodes.
func snapshot(t *testing.T, nodes ...cluster.Node) *cluster.Snapshot {
	t.Helper()
	s := cluster.NewSnapshot()
	for _, n := range nodes {
		if err := s.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// ask builds a request from the grammar.
func ask(t *testing.T, id, text string) fit.Request {
	t.Helper()
	r, err := placetest.Ask(id, text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// certain is work that ends after so many minutes; 0: it is not known when.
func certain(minutes int) forecast.Remaining {
	l := &forecast.Lifetimes{}
	for range 4 * min(1, minutes) {
		l.Ended(time.Duration(minutes)*time.Minute, "it")
	}
	return l.Remaining(0, 0, "it")
}

func TestOutlook(t *testing.T) {
	whole := func(n, run int) Waiter {
		return Waiter{Request: ask(t, "w", fmt.Sprint(n)), Count: 1, Left: certain(run)}
	}
	gang := func(count int) Waiter {
		return Waiter{Request: ask(t, "g", "1"), Count: count, Together: true}
	}
	for name, c := range map[string]struct {
		a, b    []int // what runs on two nodes of four GPUs
		waiting []Waiter
		want    []int // minutes; -1: not known
	}{
		"the first that ends":              {[]int{30, 20, 50, 40}, []int{60, 60, 60, 60}, []Waiter{whole(1, 0)}, []int{20}},
		"in the order of what waits":       {[]int{30, 20, 50, 40}, []int{60, 60, 60, 60}, []Waiter{whole(1, 0), whole(1, 0)}, []int{20, 30}},
		"several of one node":              {[]int{30, 20, 50, 40}, []int{25, 26, 60, 60}, []Waiter{whole(2, 0)}, []int{26}},
		"room that is there":               {[]int{30}, []int{60, 60, 60, 60}, []Waiter{whole(2, 0), whole(2, 0)}, []int{0, 30}},
		"what started ends":                {[]int{10, 0, 0, 0}, []int{0, 0, 0, 0}, []Waiter{whole(1, 15), whole(1, 0)}, []int{10, 25}},
		"what is not known to end":         {[]int{10, 0, 0, 0}, []int{0, 0, 0, 0}, []Waiter{whole(2, 0)}, []int{-1}},
		"more than a node has":             {[]int{10, 10, 10, 10}, nil, []Waiter{whole(5, 0)}, []int{-1}},
		"a gang waits for all":             {[]int{30, 20, 50, 40}, []int{60, 60, 60, 60}, []Waiter{gang(3)}, []int{40}},
		"others start with the first":      {[]int{30, 20, 50, 40}, []int{60, 60, 60, 60}, []Waiter{{Request: ask(t, "g", "1"), Count: 3}}, []int{20}},
		"a kept node is for whom it waits": {[]int{10, 20, 30, 40}, []int{15, 0, 0, 0}, []Waiter{whole(4, 5), whole(1, 0)}, []int{40, 15}},
		"after it, it is for all":          {[]int{10, 20, 30, 40}, []int{0, 0, 0, 0}, []Waiter{whole(4, 5), whole(1, 0)}, []int{40, 45}},
	} {
		s := cluster.NewSnapshot()
		for _, n := range []string{"a", "b"} {
			if err := s.AddNode(placetest.Node(n, "A100", 4)); err != nil {
				t.Fatal(err)
			}
		}
		left := busy(t, s, "a", c.a...)
		busy(t, s, "b", c.b...)
		for i, o := range Foresee(s, c.waiting, left).Outlook() {
			want := Outlook{}
			if m := time.Duration(c.want[i]) * time.Minute; m >= 0 {
				want = Outlook{true, m, m, m}
			}
			if o != want {
				t.Errorf("%s: waiter %d: %+v, want %+v", name, i, o, want)
			}
		}
	}
}

// What may end at several times makes a range, in which each of them counts as often.
func TestOutlookIsARange(t *testing.T) {
	s := cluster.NewSnapshot()
	if err := s.AddNode(placetest.Node("a", "A100", 1)); err != nil {
		t.Fatal(err)
	}
	busy(t, s, "a", 1)
	l := &forecast.Lifetimes{}
	for m := range 60 {
		l.Ended(time.Duration(m+1)*time.Minute, "it")
	}
	w := []Waiter{{Request: ask(t, "w", "1"), Count: 1}}
	o := Foresee(s, w, func(*cluster.Usage) forecast.Remaining { return l.Remaining(0, 0, "it") }).Outlook()[0]
	within := func(d time.Duration, low, high int) bool {
		return d.Minutes() >= float64(low) && d.Minutes() <= float64(high)
	}
	if !o.Known || !within(o.Soonest, 2, 6) || !within(o.Likely, 27, 33) || !within(o.Latest, 55, 59) {
		t.Errorf("of 1 to 60 minutes: %+v", o)
	}
}

// An outlook leaves the snapshot as it is.
func TestOutlookChangesNothing(t *testing.T) {
	s := snapshot(t, placetest.Node("a", "A100", 2))
	left := busy(t, s, "a", 10, 20)
	at := s.Each.Log.End()
	Foresee(s, []Waiter{{Request: ask(t, "w", "1"), Count: 1}}, left).Outlook()
	if s.Each.Log.End() != at {
		t.Error("something changed")
	}
}

// BenchmarkOutlook estimates the starts of 64 that wait in clusters of nodes with eight
// tasks each.
func BenchmarkOutlook(b *testing.B) {
	for _, nodes := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprint(nodes, " nodes"), func(b *testing.B) {
			s, l := cluster.NewSnapshot(), &forecast.Lifetimes{}
			for i := range 64 {
				l.Ended(time.Duration(i+1)*time.Minute, "it")
			}
			for i := range nodes {
				n := placetest.Node(fmt.Sprintf("n%05d", i), "A100", 8)
				if err := s.AddNode(n); err != nil {
					b.Fatal(err)
				}
				for g := range 8 {
					if err := s.Apply(cluster.Usage{ID: fmt.Sprint(n.ID, g), NodeID: n.ID, CPUMHz: 1000, Takes: []cluster.Take{{GPU: g, Milli: 1000, Slices: 80}}}); err != nil {
						b.Fatal(err)
					}
				}
			}
			var waiting []Waiter
			for i := range 64 {
				waiting = append(waiting, Waiter{Request: fit.Request{GPUs: 1 + 7*(i%2), Whole: true, CPUMHz: 1000}, Count: 1})
			}
			for b.Loop() {
				Foresee(s, waiting, func(*cluster.Usage) forecast.Remaining { return l.Remaining(0, 0, "it") }).Outlook()
			}
		})
	}
}

// What is foreseen is a copy: what happens to the cluster until it is played does not count.
func TestForesightIsACopy(t *testing.T) {
	s := snapshot(t, placetest.Node("a", "A100", 2))
	left := busy(t, s, "a", 10, 20)
	f := Foresee(s, []Waiter{{Request: ask(t, "w", "2"), Count: 1}}, left)
	done := make(chan []Outlook)
	go func() { done <- f.Outlook() }()
	if err := s.AddNode(placetest.Node("b", "T4", 8)); err != nil {
		t.Fatal(err)
	}
	for _, u := range s.UsagesOn("a") {
		if _, err := s.Release(u.ID); err != nil {
			t.Fatal(err)
		}
	}
	if want := 20 * time.Minute; (<-done)[0] != (Outlook{true, want, want, want}) {
		t.Error("the cluster was seen as it became later")
	}
}
