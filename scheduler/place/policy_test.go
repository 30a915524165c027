// SPDX-License-Identifier: MPL-2.0

package place

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Two nodes, one of them half full, both with an empty GPU left.
func TestPoliciesDiffer(t *testing.T) {
	for _, c := range []struct {
		policy Policy
		node   string
		gpu    int
	}{
		{PolicyPack, "full", 0},
		{PolicySpread, "empty", 0},
		{PolicyBalanced, "full", 0}, // beside the 0.5: no waste at all
	} {
		p := testPlanner(t, testNode("empty", "A100", 2), testNode("full", "A100", 2))
		held(t, p.snap, "a", "full", 0, 500, 10)
		r := ask(t, "new", "0.5")
		r.Policy = c.policy
		pl, err := p.Place(&r)
		if err != nil || pl.NodeID != c.node || pl.Usage.Takes[0].GPU != c.gpu {
			t.Errorf("%s: %+v, %v; want GPU %d of %s", c.policy, pl, err, c.gpu, c.node)
		}
	}
}

func TestSpreadTakesTheEmptiestGPU(t *testing.T) {
	p := testPlanner(t, testNode("n1", "A100", 3))
	held(t, p.snap, "a", "n1", 0, 200, 10)
	held(t, p.snap, "b", "n1", 1, 600, 10)
	for policy, want := range map[Policy]int{PolicySpread: 2, PolicyPack: 1} {
		r := ask(t, "new", "0.3")
		r.Policy = policy
		if pl, err := p.Place(&r); err != nil || pl.Usage.Takes[0].GPU != want {
			t.Errorf("%s: %+v, %v; want GPU %d", policy, pl, err, want)
		}
	}
}

func TestMeasurementCounts(t *testing.T) {
	busy, calm := testNode("busy", "A100", 1), testNode("calm", "A100", 1)
	busy.GPUs[0].MeasuredMilli, calm.GPUs[0].MeasuredMilli = 900, 0
	s := NewSnapshot()
	for _, n := range []Node{busy, calm} {
		if err := s.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	w := DefaultWeights()
	w.MeasuredMilli = 500
	r := ask(t, "new", "0.25")
	if pl, err := NewPlanner(s, PolicySpread, w).Place(&r); err != nil || pl.NodeID != "calm" {
		t.Errorf("%+v, %v; want the node that measures calm", pl, err)
	}
}

// Eight GPUs in two NVLink islands of four; the first island lost one.
func TestCloseGPUs(t *testing.T) {
	n := testNode("n1", "A100", 8)
	for i := range n.GPUs {
		n.GPUs[i].NUMA = i / 4
		for j := range 8 {
			if j/4 == i/4 && j != i {
				n.GPUs[i].Peers = append(n.GPUs[i].Peers, j)
			}
		}
	}
	p := testPlanner(t, n)
	held(t, p.snap, "a", "n1", 1, 1000, 10)
	r := ask(t, "new", "4")
	pl, err := p.Place(&r)
	if err != nil || len(pl.Usage.Takes) != 4 || pl.Usage.Takes[0].GPU != 4 {
		t.Errorf("%+v, %v; want GPUs 4 to 7", pl, err)
	}
}

// The node without links comes first, but the task asks for close GPUs.
func TestCloseIsWorthANode(t *testing.T) {
	linked := testNode("linked", "A100", 2)
	linked.GPUs[0].Peers, linked.GPUs[1].Peers = []int{1}, []int{0}
	p := testPlanner(t, testNode("plain", "A100", 2), linked)
	r := ask(t, "new", "2")
	r.Close = true
	if pl, err := p.Place(&r); err != nil || pl.NodeID != "linked" {
		t.Errorf("%+v, %v; want the linked node", pl, err)
	}
}

func TestExplain(t *testing.T) {
	p := testPlanner(t, testNode("n1", "A100", 1), testNode("n2", "A100", 1), testNode("n3", "V100", 1))
	held(t, p.snap, "low", "n1", 0, 1000, 10)
	held(t, p.snap, "high", "n2", 0, 1000, 90)
	r := ask(t, "new", "24G(A100)")
	r.Priority = 50
	e, err := p.Explain(&r, noon)
	if err != nil || e.Fits != 0 || e.Impossible() {
		t.Fatalf("%+v, %v", e, err)
	}
	var lines []string
	for _, why := range e.Reasons {
		lines = append(lines, why.String())
	}
	want := "2 nodes: no GPU with 24 GiB free; 1 of them would do after preempting work of lower priority\n1 node: other model than A100"
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestReasonsInWords(t *testing.T) {
	for _, c := range []struct{ ask, want string }{
		{"1", "1 node: no GPU with nothing on it; 1 of them would do after preempting work of lower priority"},
		{"2", "1 node: no GPU with nothing on it, and 2 are needed on one node; 1 of them would do after preempting work of lower priority"},
		{"0.75", "1 node: no GPU with 0.75 of the compute free; 1 of them would do after preempting work of lower priority"},
		{"1500M,0.6", "1 node: no GPU with 1.465 GiB and 0.6 of the compute free; 1 of them would do after preempting work of lower priority"},
		{"3", "1 node: fewer than 3 GPUs of one kind, and all have to be on one node"},
		{"100G", "1 node: GPU memory too small"},
	} {
		p := testPlanner(t, testNode("n1", "A100", 2))
		for i := range 2 {
			held(t, p.snap, string(rune('a'+i)), "n1", i, 500, 10)
		}
		r := ask(t, "new", c.ask)
		r.Priority = 50
		e, err := p.Explain(&r, noon)
		if err != nil || len(e.Reasons) != 1 || e.Reasons[0].String() != c.want {
			t.Errorf("%s: %v, %v; want %q", c.ask, e.Reasons, err, c.want)
		}
	}
	p := testPlanner(t, testNode("n1", "A100", 1))
	for want, r := range map[string]Request{
		"1 node: less than 65000 MHz of CPU":  {ID: "r", CPUMHz: 65000},
		"1 node: less than 512 GiB of memory": {ID: "r", MemoryMiB: 512 << 10},
	} {
		if e, err := p.Explain(&r, noon); err != nil || !e.Impossible() || e.Reasons[0].String() != want {
			t.Errorf("%+v: %v, %v; want %q", r, e.Reasons, err, want)
		}
	}
}

// Of a request for several GPUs it is said how many of them the nodes have: it needs one node, however
// many are free in all.
func TestReasonsSayThatOneNodeIsNeeded(t *testing.T) {
	p := testPlanner(t, testNode("n1", "A100", 4), testNode("n2", "A100", 4), testNode("n3", "A100", 4), testNode("n4", "A100", 2))
	for i, n := range []string{"n1", "n1", "n2", "n2", "n3", "n3", "n3"} {
		held(t, p.snap, string(rune('a'+i)), n, i%4, 500, 10)
	}
	r := ask(t, "new", "3")
	e, err := p.Explain(&r, noon)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, why := range e.Reasons {
		lines = append(lines, why.String())
	}
	want := "2 nodes: only 2 GPUs with nothing on them, and 3 are needed on one node\n" +
		"1 node: fewer than 3 GPUs of one kind, and all have to be on one node\n" +
		"1 node: only 1 GPU with nothing on it, and 3 are needed on one node"
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestExplanationAddsUp(t *testing.T) {
	for _, policy := range []Policy{PolicyBalanced, PolicyPack, PolicySpread} {
		p := testPlanner(t, testNode("n1", "A100", 2), testNode("n2", "A100", 4), testNode("n3", "A100", 1))
		held(t, p.snap, "a", "n2", 0, 300, 10)
		r := ask(t, "new", "0.4")
		r.Policy = policy
		pl, err := p.Place(&r)
		if err != nil {
			t.Fatal(err)
		}
		e, err := p.Explain(&r, time.Time{})
		if err != nil || len(e.Candidates) != 3 || e.Candidates[0].NodeID != pl.NodeID || e.Candidates[0].Score != pl.Score {
			t.Fatalf("%s: placed %+v, explained %+v, %v", policy, pl, e, err)
		}
		for _, c := range e.Candidates {
			sum := int64(0)
			for _, term := range c.Terms {
				sum += term.ValueMilli * term.WeightMilli
			}
			if diff := sum/1000 - c.Score; diff < -2 || diff > 2 { // each term is rounded
				t.Errorf("%s: terms of %s add up to %d, score %d", policy, c.NodeID, sum/1000, c.Score)
			}
		}
	}
}

// A GPU that is measured hot is not chosen as if it were idle, under any policy.
func TestHotGPUsAreAvoided(t *testing.T) {
	hot := func(id string, count int, surplus ...int64) Node {
		n := testNode(id, "A100", count)
		for i, milli := range surplus {
			n.GPUs[i].SurplusMilli = milli
		}
		return n
	}
	for _, c := range []struct {
		name  string
		off   bool
		nodes []Node
		ask   string
		want  string // node and GPUs
	}{
		{"heat does not count", true, []Node{hot("a", 2, 900)}, "0.5", "a [0]"},
		{"the other GPU", false, []Node{hot("a", 2, 900)}, "0.5", "a [1]"},
		{"it has enough left", false, []Node{hot("a", 2, 500)}, "0.5", "a [0]"},
		{"whole ones too", false, []Node{hot("a", 2, 900)}, "1", "a [1]"},
		{"of several the cool", false, []Node{hot("a", 3, 900)}, "2", "a [1 2]"},
		{"of several, as many as there are", false, []Node{hot("a", 3, 900, 800)}, "2", "a [1 2]"},
		{"another node for several", false, []Node{hot("a", 2, 900, 900), hot("b", 2)}, "2", "b [0 1]"},
		{"another node", false, []Node{hot("a", 1, 1000), hot("b", 1)}, "0.5", "b [0]"},
		{"no other is left", false, []Node{hot("a", 1, 1000)}, "0.5", "a [0]"},
	} {
		for _, policy := range []Policy{PolicyBalanced, PolicyPack, PolicySpread} {
			s := NewSnapshot()
			for _, n := range c.nodes {
				if err := s.AddNode(n); err != nil {
					t.Fatal(err)
				}
			}
			w := DefaultWeights()
			if c.off {
				w.HeatMilli = 0
			}
			r := ask(t, "task", c.ask)
			pl, err := NewPlanner(s, policy, w).Place(&r)
			if err != nil {
				t.Fatal(err)
			}
			if got := goesTo(&pl); got != c.want {
				t.Errorf("%s, %s: goes to %s, want %s", c.name, policy, got, c.want)
			}
		}
	}
}

// goesTo is the node and the GPUs of a placement.
func goesTo(pl *Placement) string {
	var gpus []int
	for _, take := range pl.Usage.Takes {
		gpus = append(gpus, take.GPU)
	}
	return fmt.Sprint(pl.NodeID, " ", gpus)
}

// What is expected to use more than it is guaranteed gets a GPU that has as much left while there
// is one, and only then one where it would have to share what there is. What was never measured is
// planned by its guarantee.
func TestBurstsAreExpected(t *testing.T) {
	burst := func(milli int64) func(*Usage) { return func(u *Usage) { u.Takes[0].Expected = milli } }
	type work struct {
		node     string
		gpu      int
		milli    int64
		expected int64
	}
	for _, c := range []struct {
		name     string
		nodes    []Node
		there    []work
		ask      string
		expected int64
		want     string
	}{
		{"two bursters, and an idle GPU on the node", []Node{testNode("a", "A100", 2)}, []work{{"a", 0, 200, 800}}, "0.2", 800, "a [1]"},
		{"two bursters, and an idle node", []Node{testNode("a", "A100", 1), testNode("b", "A100", 1)}, []work{{"a", 0, 200, 800}}, "0.2", 800, "b [0]"},
		{"two bursters, and no idle GPU", []Node{testNode("a", "A100", 1)}, []work{{"a", 0, 200, 800}}, "0.2", 800, "a [0]"},
		{"the burster that leaves the most", []Node{testNode("a", "A100", 2)}, []work{{"a", 0, 200, 900}, {"a", 1, 200, 600}}, "0.2", 800, "a [1]"},
		{"never measured, beside a burster that leaves enough", []Node{testNode("a", "A100", 2)}, []work{{"a", 0, 200, 800}}, "0.2", 0, "a [0]"},
		{"never measured, beside one that does not", []Node{testNode("a", "A100", 2)}, []work{{"a", 0, 200, 900}}, "0.2", 0, "a [1]"},
		{"neither was measured", []Node{testNode("a", "A100", 2)}, []work{{"a", 0, 200, 0}}, "0.2", 0, "a [0]"},
		{"it uses less than it is guaranteed", []Node{testNode("a", "A100", 2)}, []work{{"a", 0, 500, 100}}, "0.5", 100, "a [0]"},
		{"a burster beside what keeps to its guarantee", []Node{testNode("a", "A100", 2)}, []work{{"a", 0, 500, 0}}, "0.2", 800, "a [1]"},
	} {
		for _, policy := range []Policy{PolicyBalanced, PolicyPack} {
			p := NewPlanner(NewSnapshot(), policy, DefaultWeights())
			for _, n := range c.nodes {
				if err := p.snap.AddNode(n); err != nil {
					t.Fatal(err)
				}
			}
			for i, w := range c.there {
				held(t, p.snap, fmt.Sprint("there", i), w.node, w.gpu, w.milli, 10, burst(w.expected))
			}
			r := ask(t, "new", c.ask)
			r.Expected = c.expected
			pl, err := p.Place(&r)
			if err != nil {
				t.Fatal(err)
			}
			if got := goesTo(&pl); got != c.want {
				t.Errorf("%s, %s: goes to %s, want %s", c.name, policy, got, c.want)
			}
			if got, want := pl.Usage.Takes[0].Expected, c.expected; got != want && want > r.ShareMilli {
				t.Errorf("%s: it is booked as expected to use %d, want %d", c.name, got, want)
			}
		}
	}
}
