package decide_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
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
