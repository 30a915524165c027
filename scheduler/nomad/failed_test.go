// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"testing"

	"github.com/hashicorp/go-bexpr"
	"github.com/hashicorp/nomad/api"
)

// Of what failed it is known whether Nomad starts another in its place, and followed until it has.
func TestWhatFailedIsFollowedUntilAnotherIsStarted(t *testing.T) {
	m := NewMirror(Hardware{})
	for _, step := range []struct {
		name            string
		index           uint64
		status, desired string
		followup, next  string
		failed, returns bool
		told            bool
	}{
		{name: "it runs", index: 1, status: "running", desired: "run", told: true},
		{name: "it failed", index: 2, status: "failed", desired: "run", failed: true, told: true},
		{name: "it is started again later", index: 3, status: "failed", desired: "run", followup: "e", failed: true, returns: true, told: true},
		{name: "no news", index: 3, status: "failed", desired: "run", followup: "e", failed: true, returns: true},
		{name: "another is started", index: 4, status: "failed", desired: "run", followup: "e", next: "n", told: true},
		{name: "later news of what is over", index: 5, status: "failed", desired: "run", followup: "e", next: "n"},
		{name: "one that was not heard of yet", index: 6, status: "failed", desired: "run", followup: "e", failed: true, returns: true, told: true},
		{name: "it is not wanted any more", index: 7, status: "failed", desired: "stop", followup: "e", told: true},
		{name: "what ended well", index: 8, status: "complete", desired: "run"},
	} {
		a := (&eventAlloc{ID: "id", ModifyIndex: step.index, ClientStatus: step.status, DesiredStatus: step.desired, FollowupEvalID: step.followup, NextAllocation: step.next}).alloc()
		if changes := m.alloc(a); a.Failed != step.failed || a.Returns != step.returns || (len(changes) == 1) != step.told {
			t.Errorf("%s: failed %v, returns %v, %d changes", step.name, a.Failed, a.Returns, len(changes))
		}
	}
}

// Nomad starts again what its policy says, of services and batch jobs alone.
func TestRestarts(t *testing.T) {
	yes, no, once, never := true, false, 1, 0
	for name, row := range map[string]struct {
		kind   string
		policy *api.ReschedulePolicy
		want   bool
	}{
		"a service":     {kind: "service", want: true},
		"a batch job":   {kind: "batch", want: true},
		"once":          {kind: "batch", policy: &api.ReschedulePolicy{Attempts: &once, Unlimited: &no}, want: true},
		"without bound": {kind: "service", policy: &api.ReschedulePolicy{Attempts: &never, Unlimited: &yes}, want: true},
		"never":         {kind: "service", policy: &api.ReschedulePolicy{Attempts: &never, Unlimited: &no}},
		"a system job":  {kind: "system"},
	} {
		id, group := "job", "g"
		j := &api.Job{ID: &id, Type: &row.kind, TaskGroups: []*api.TaskGroup{{Name: &group, ReschedulePolicy: row.policy,
			Tasks: []*api.Task{{Name: "t", Driver: "docker", Meta: map[string]string{"gpu": "1"}}}}}}
		j.Canonicalize()
		if got := NewJob(j, Hardware{}).Groups[0].Restarts; got != row.want {
			t.Errorf("%s: restarts %v", name, got)
		}
	}
}

// The filters that Nomad evaluates mean what the code says of single allocs.
func TestFiltersOfAllocs(t *testing.T) {
	filter := func(text string) *bexpr.Evaluator {
		e, err := bexpr.CreateEvaluator(text)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	occupies, isOver := filter(occupying), filter(over)
	for _, status := range []string{"pending", "running", "unknown", "complete", "failed", "lost"} {
		for _, desired := range []string{"run", "stop", "evict"} {
			for _, followup := range []string{"", "e"} {
				for _, next := range []string{"", "n"} {
					stub := api.AllocationListStub{ClientStatus: status, DesiredStatus: desired, FollowupEvalID: followup, NextAllocation: next}
					a := NewAlloc(&stub)
					if got, err := occupies.Evaluate(stub); err != nil || got != (a.Holds() || a.Returns) {
						t.Errorf("%+v is listed: %v, %v", stub, got, err)
					}
					if got, err := isOver.Evaluate(stub); err != nil || got == a.Holds() {
						t.Errorf("%+v is over: %v, %v", stub, got, err)
					}
				}
			}
		}
	}
}

// What a node has now is asked of that node alone, however Nomad reads what is asked.
func TestOnlyTheAllocsOfTheNodeAreAskedFor(t *testing.T) {
	m := &inMemory{answer: stocked}
	if _, _, err := NewActor(m.client(t)).Allocs(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	filter, err := bexpr.CreateEvaluator(m.asked[0].URL.Query().Get("filter"))
	if err != nil {
		t.Fatal(err)
	}
	for _, stub := range []api.AllocationListStub{{ClientStatus: "running"}, {ClientStatus: "failed", DesiredStatus: "run", FollowupEvalID: "e"}, {ClientStatus: "complete"}} {
		for _, node := range []string{"n1", "n2"} {
			stub.NodeID = node
			if got, err := filter.Evaluate(stub); err != nil || got != (node == "n1" && stub.ClientStatus != "complete") {
				t.Errorf("%s on %s is asked for: %v, %v", stub.ClientStatus, node, got, err)
			}
		}
	}
}
