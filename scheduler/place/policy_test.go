package place

import (
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
		{"2", "1 node: fewer than 2 GPUs with nothing on them; 1 of them would do after preempting work of lower priority"},
		{"0.75", "1 node: no GPU with 0.75 of the compute free; 1 of them would do after preempting work of lower priority"},
		{"1500M,0.6", "1 node: no GPU with 1500 MiB and 0.6 of the compute free; 1 of them would do after preempting work of lower priority"},
		{"3", "1 node: fewer than 3 like GPUs"},
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

// Two half-used GPUs become a full and an empty one.
func TestRebalanceHeals(t *testing.T) {
	p := testPlanner(t, testNode("n1", "A100", 1), testNode("n2", "A100", 1))
	p.Learn([]Request{{GPUs: 1, Whole: true, CPUMHz: 1000}}) // nobody wants half a GPU
	fresh := func(u *Usage) { u.Start = noon }
	held(t, p.snap, "a", "n1", 0, 500, 10, fresh)
	held(t, p.snap, "b", "n2", 0, 500, 10, fresh)
	moves := p.Rebalance(Rebalancing{Moves: 5}, noon)
	if len(moves) != 1 || moves[0].GainMilli < 100 || moves[0].From.NodeID == moves[0].To.NodeID {
		t.Fatalf("moves %+v", moves)
	}
	if n := len(p.snap.UsagesOn("n1")); n != 1 {
		t.Errorf("proposing moved something: %d on n1", n)
	}
	late := noon.Add(1000 * time.Hour)
	if moves := p.Rebalance(Rebalancing{Moves: 5}, late); len(moves) != 0 {
		t.Errorf("moves that lose more work than they gain: %+v", moves)
	}
}
