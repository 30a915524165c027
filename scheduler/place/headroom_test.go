// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"testing"
	"time"
)

// crowd is a planner of four nodes with eight GPUs each, of which one is in use everywhere but
// on so many nodes, where for the last two hours a job for eight GPUs came every ten minutes.
func crowd(t *testing.T, whole int) (*Planner, time.Time) {
	t.Helper()
	var nodes []Node
	for i := range 4 {
		nodes = append(nodes, testNode(fmt.Sprint("n", i), "H100", 8))
	}
	p := testPlanner(t, nodes...)
	p.ExpectEnds(1)
	at := time.Unix(0, 0)
	for i := range 120 {
		at = at.Add(time.Minute)
		one, eight := ask(t, "s", "1"), ask(t, "l", "8")
		p.ArriveAt(&one, at)
		if i%10 == 0 {
			p.ArriveAt(&eight, at)
		}
	}
	for i := whole; i < 4; i++ {
		r := ask(t, fmt.Sprint("resident", i), "1")
		r.Nodes = []string{fmt.Sprint("n", i)}
		pl, err := p.Place(&r)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.snap.Apply(pl.Usage); err != nil {
			t.Fatal(err)
		}
	}
	return p, at
}

// Smaller tasks leave the last places to the large ones that come often, for as long as the
// weights say, and only where they would break such a place.
func TestTheLastPlacesAreKeptForLargeTasks(t *testing.T) {
	for name, tc := range map[string]struct {
		request, node string
		priority      int
		policy        Policy
		waited        time.Duration
		nothingEnds   bool
		want          Headroom
	}{
		"one GPU of a whole node":           {request: "1", node: "n0", want: Headroom{8, 1}},
		"a part of a GPU of a whole node":   {request: "0.1", node: "n0", want: Headroom{8, 1}},
		"four GPUs of a whole node":         {request: "4", node: "n0", want: Headroom{8, 1}},
		"it takes no less":                  {request: "8", node: "n0"},
		"the node is in use":                {request: "1", node: "n1"},
		"it has waited almost long enough":  {request: "1", node: "n0", waited: DefaultWeights().HeadroomWait - 1, want: Headroom{8, 1}},
		"it has waited long enough":         {request: "1", node: "n0", waited: DefaultWeights().HeadroomWait},
		"its priority is higher":            {request: "1", node: "n0", priority: 1},
		"its priority is lower":             {request: "1", node: "n0", priority: -1, want: Headroom{8, 1}},
		"the policy is another":             {request: "1", node: "n0", policy: PolicyPack},
		"the cluster fills up, none starts": {request: "1", node: "n0", nothingEnds: true},
	} {
		p, _ := crowd(t, 1)
		if tc.nothingEnds {
			for range 5000 {
				p.Started()
			}
			p.recompute()
		}
		r := ask(t, "r", tc.request)
		r.Nodes, r.Priority, r.Policy = []string{tc.node}, tc.priority, tc.policy
		pl, err := p.Place(&r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, keeps := p.Keeps(&r, &pl.Usage, tc.waited); keeps != (tc.want != Headroom{}) || keeps && got != tc.want {
			t.Errorf("%s: kept %v %v, want %v", name, keeps, got, tc.want)
		}
	}
}

// Places are not kept where there are many, or where large tasks came rarely or long ago.
func TestPlacesAreKeptOnlyWhereTheyWillBeNeeded(t *testing.T) {
	kept := func(p *Planner, node string) bool {
		r := ask(t, "r", "1")
		r.Nodes = []string{node}
		pl, err := p.Place(&r)
		if err != nil {
			t.Fatal(err)
		}
		_, keeps := p.Keeps(&r, &pl.Usage, 0)
		return keeps
	}
	p, at := crowd(t, 1)
	if !kept(p, "n0") {
		t.Error("the only place is not kept")
	}
	small := ask(t, "s", "1")
	p.ArriveAt(&small, at.Add(12*time.Hour))
	if kept(p, "n0") {
		t.Error("a place is kept though no large task has come for twelve hours")
	}

	p, at = crowd(t, 2)
	for i := range 5000 { // whatever comes, no more than a quarter is kept
		eight := ask(t, "l", "8")
		p.ArriveAt(&eight, at.Add(time.Duration(i)*time.Second))
	}
	if kept(p, "n0") {
		t.Error("two of four nodes are kept")
	}

	nodes := make([]Node, 40)
	for i := range nodes {
		nodes[i] = testNode(fmt.Sprint("n", i), "H100", 8)
	}
	p = testPlanner(t, nodes...)
	p.ExpectEnds(1)
	eight, now := ask(t, "l", "8"), time.Unix(0, 0)
	for i := range 12 {
		if kept(p, "n0") != false {
			t.Errorf("kept after %d large tasks, with 40 places", i)
		}
		now = now.Add(10 * time.Minute)
		p.ArriveAt(&eight, now)
	}
}

// Four GPUs are enough for a task to be large, and a node with just as many idle is a place.
func TestFourGPUsAreLarge(t *testing.T) {
	p := testPlanner(t, testNode("a", "A100", 4), testNode("b", "A100", 3))
	p.ExpectEnds(1)
	at := time.Unix(0, 0)
	for range 12 {
		at = at.Add(10 * time.Minute)
		four, three := ask(t, "l", "4"), ask(t, "m", "3")
		p.ArriveAt(&four, at)
		p.ArriveAt(&three, at)
	}
	for node, want := range map[string]Headroom{"a": {4, 1}, "b": {}} {
		r := ask(t, "r", "1")
		r.Nodes = []string{node}
		pl, err := p.Place(&r)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := p.Keeps(&r, &pl.Usage, 0); got != want {
			t.Errorf("node %s: kept %v, want %v", node, got, want)
		}
		if got := p.KeptNodes(&r, 0)[node]; got != (want != Headroom{}) {
			t.Errorf("node %s is kept: %v", node, got)
		}
	}
}

// A place for large tasks also needs CPU and host memory: a task that takes these, and no GPU, breaks it.
func TestPlacesNeedCPUAndMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		cpu, memory int64
		keeps       bool
	}{
		"enough is left": {1000, 1024, false},
		"all CPU":        {64000, 1024, true},
		"all memory":     {1000, 262144, true},
	} {
		p, _ := crowd(t, 1)
		r := Request{ID: "r", CPUMHz: tc.cpu, MemoryMiB: tc.memory, Nodes: []string{"n0"}}
		pl, err := p.Place(&r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if h, keeps := p.Keeps(&r, &pl.Usage, 0); keeps != tc.keeps {
			t.Errorf("%s: kept %v %v", name, keeps, h)
		}
	}
}
