// SPDX-License-Identifier: MPL-2.0

package admit

import (
	"strings"
	"testing"
)

// A user's own device block is kept on the models of its queue, and is known again as the
// user wrote it: with and without the bound it is the same ask.
func TestAUsersOwnBlockIsBoundToTheModelsOfItsQueue(t *testing.T) {
	body := jobWith(`"Resources":{"Devices":[{"Name":"nvidia/gpu","Count":1,"Constraints":[{"LTarget":"${device.attr.memory}","RTarget":"10 GiB","Operand":">="}]}]}`)
	bound := &Constraint{LTarget: "${device.attr.type}", Operand: "set_contains_any", RTarget: "A100,H100"}
	first, err := Read([]byte(body), Query{})
	if err != nil {
		t.Fatal(err)
	}
	decide := func(b *Constraint) Decision {
		return Decision{Group: "g", Tasks: []TaskDecision{{Task: "t", Bound: b}}}
	}
	d := decide(bound)
	written, err := first.Apply([]Decision{d}, Link{})
	if err != nil || !strings.Contains(string(written), `"nomad-gpu,A100,H100"`) || !strings.Contains(string(written), "10 GiB") {
		t.Fatalf("%v: %s", err, written)
	}
	again, err := Read(written, Query{})
	if err != nil {
		t.Fatal(err)
	}
	ask := &again.Asks[0]
	if ask.Key() != first.Asks[0].Key() || ask.Was.Tasks[0].Bound == nil || *ask.Was.Tasks[0].Bound != *bound {
		t.Errorf("read again: %+v, bound %+v", ask, ask.Was.Tasks[0].Bound)
	}
	other := decide(&Constraint{LTarget: "${device.attr.type}", Operand: "set_contains_any", RTarget: "T4"})
	if ask.Registered() != ask.Fingerprint(&d) || ask.Registered() == ask.Fingerprint(&other) {
		t.Error("what is registered is not known by its bound")
	}
	if same, err := again.Apply([]Decision{d}, Link{}); err != nil || string(same) != string(written) {
		t.Errorf("%v: written twice\n%s\n%s", err, written, same)
	}
	if free, err := again.Apply([]Decision{decide(nil)}, Link{}); err != nil || strings.Contains(string(free), "A100") || !strings.Contains(string(free), "10 GiB") {
		t.Errorf("%v: without a bound: %s", err, free)
	}
}

// Where a queue's work may run stands in the job, and is read again as what it is.
func TestTheBoundsOfAQueueStandInTheJob(t *testing.T) {
	own := Constraint{LTarget: "${meta.rack}", Operand: "=", RTarget: "r1"}
	d := Decision{Group: "g", Tasks: []TaskDecision{{Task: "t", Devices: []Device{{Name: "nvidia/gpu", Count: 1}}}}, Bounds: []Constraint{
		{LTarget: DatacenterTarget, Operand: "set_contains_any", RTarget: "dc1,dc2"}, {LTarget: PoolTarget, Operand: "set_contains_any", RTarget: "gpu"}, own,
	}}
	first, err := Read([]byte(jobWith(`"Meta":{"gpu":"1"}`)), Query{})
	if err != nil {
		t.Fatal(err)
	}
	written, err := first.Apply([]Decision{d}, Link{})
	if err != nil || !strings.Contains(string(written), `"nomad-gpu,dc1,dc2"`) || !strings.Contains(string(written), `"${node.pool}"`) {
		t.Fatalf("%v: %s", err, written)
	}
	again, err := Read(written, Query{})
	if err != nil {
		t.Fatal(err)
	}
	ask := &again.Asks[0]
	if was := ask.Was.Bounds; len(was) != 2 || was[0] != d.Bounds[0] || was[1] != d.Bounds[1] || len(ask.Was.Candidates) != 0 {
		t.Errorf("read again: %+v, candidates %v", was, ask.Was.Candidates)
	}
	if len(ask.Constraints) != 1 || ask.Constraints[0] != own {
		t.Errorf("the operator's own condition, which bears no mark, is %+v", ask.Constraints)
	}
	if same, err := again.Apply([]Decision{d}, Link{}); err != nil || string(same) != string(written) {
		t.Errorf("%v: written twice\n%s\n%s", err, written, same)
	}
	other := d
	other.Bounds = nil
	if ask.Registered() != ask.Fingerprint(&d) || ask.Registered() == ask.Fingerprint(&other) {
		t.Error("what is registered is not known by its bounds")
	}
}
