// SPDX-License-Identifier: MPL-2.0

package place

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/placetest"
)

// testNode has count equal GPUs.
func testNode(id, model string, count int) Node { return placetest.Node(id, model, count) }

func testPlanner(t *testing.T, nodes ...Node) *Planner {
	t.Helper()
	s := NewSnapshot()
	for _, n := range nodes {
		if err := s.AddNode(n); err != nil {
			t.Fatal(err)
		}
	}
	return NewPlanner(s, PolicyBalanced, DefaultWeights())
}

// ask builds a request from the grammar.
func ask(t *testing.T, id, text string) Request {
	t.Helper()
	r, err := placetest.Ask(id, text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPlaceTakesWhatTheRequestSays(t *testing.T) {
	for _, c := range []struct {
		text string
		want string
	}{
		{"1", "[{0 1000 80 0 0}]"},
		{"2(A100)", "[{0 1000 80 0 0} {1 1000 80 0 0}]"},
		{"0.5", "[{0 500 40 0 0}]"},
		{"0.333", "[{0 333 26 0 0}]"}, // rounded down: three of them fit
		{"0.001", "[{0 1 1 0 0}]"},
		{"8G", "[{0 100 8 0 0}]"},
		{"8G,0.5(nvidia,NVIDIA-A100-PCIE)", "[{0 500 8 0 0}]"},
		{"1500M", "[{0 25 2 0 0}]"}, // memory rounds up to slices
	} {
		p := testPlanner(t, testNode("n1", "A100", 4))
		r := ask(t, "task", c.text)
		pl, err := p.Place(&r)
		if err != nil {
			t.Errorf("Place(%q): %v", c.text, err)
			continue
		}
		if got := fmt.Sprint(pl.Usage.Takes); got != c.want {
			t.Errorf("Place(%q) takes %s, want %s", c.text, got, c.want)
		}
	}
}

func TestPlaceRefuses(t *testing.T) {
	for _, c := range []struct {
		text  string
		never bool
	}{
		{"5", true},       // four GPUs on the node
		{"1(V100)", true}, // other model
		{"81G", true},     // larger than the card
		{"0.5(amd,A100)", true},
		{"4", false}, // one GPU is in use
	} {
		p := testPlanner(t, testNode("n1", "A100", 4))
		if err := p.snap.Apply(Usage{ID: "u", NodeID: "n1", Takes: []Take{{GPU: 1, Milli: 10, Slices: 1}}}); err != nil {
			t.Fatal(err)
		}
		r := ask(t, "task", c.text)
		if _, err := p.Place(&r); !errors.Is(err, ErrNoRoom) {
			t.Errorf("Place(%q): %v, want ErrNoRoom", c.text, err)
		}
		e, err := p.Explain(&r, time.Time{})
		if err != nil || e.Impossible() != c.never {
			t.Errorf("Explain(%q) = %+v, %v; want impossible %v", c.text, e, err, c.never)
		}
	}
}

func TestReleaseUndoesApply(t *testing.T) {
	p := testPlanner(t, testNode("n1", "A100", 2))
	r := ask(t, "a", "8G,0.5")
	first, err := p.Place(&r)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := p.snap.Apply(first.Usage); err != nil {
			t.Fatal(err)
		}
		if _, err := p.snap.Release("a"); err != nil {
			t.Fatal(err)
		}
		again, err := p.Place(&r)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(first) {
			t.Fatalf("after apply and release: %+v, %v; want %+v", again, err, first)
		}
	}
}

func TestUnhealthyGPUTakesNoWork(t *testing.T) {
	n := testNode("n1", "A100", 2)
	p := testPlanner(t, n)
	n.GPUs = append([]GPU(nil), n.GPUs...)
	n.GPUs[0].Unhealthy = true
	if err := p.snap.UpdateNode(n); err != nil {
		t.Fatal(err)
	}
	r := ask(t, "a", "0.5")
	pl, err := p.Place(&r)
	if err != nil || pl.Usage.Takes[0].GPU != 1 {
		t.Fatalf("got %+v, %v; want GPU 1", pl, err)
	}
}

// The gpu term of a score is the mean of the compute and the memory that are allocated once the
// task is there, also where it asks for more of one than of the other.
func TestTheGPUTermIsWhatIsAllocatedThen(t *testing.T) {
	for request, want := range map[string]int64{"8G,0.6": 350, "40G,0.1": 300, "0.5": 500, "8G": 100, "1": 1000} {
		p := testPlanner(t, testNode("a", "A100", 1))
		r := ask(t, "r", request)
		e, err := p.Explain(&r, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		got := int64(-1)
		for _, term := range e.Candidates[0].Terms {
			if term.Name == "gpu" {
				got = term.ValueMilli
			}
		}
		if got != want {
			t.Errorf("%s: %d, want %d", request, got, want)
		}
	}
}

// Models in order of preference are tried from the first on, those without order all at once.
func TestModelsInOrderAreTriedFromTheFirst(t *testing.T) {
	for _, models := range [][]string{{"A100", "T4"}, {"T4", "A100"}} {
		p := testPlanner(t, testNode("A100", "A100", 1), testNode("T4", "T4", 1))
		r := ask(t, "r", "1")
		r.Models, r.Ordered = models, true
		for _, want := range models {
			pl, err := p.Place(&r)
			if err != nil || pl.NodeID != want {
				t.Fatalf("%v: placed on %q, want %q: %v", models, pl.NodeID, want, err)
			}
			pl.Usage.ID = want
			if err := p.snap.Apply(pl.Usage); err != nil {
				t.Fatal(err)
			}
		}
	}
}
