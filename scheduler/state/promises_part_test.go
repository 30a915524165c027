// SPDX-License-Identifier: MPL-2.0

package state

import (
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
)

// An alloc keeps one promise: of its group, and for its node if there is one.
func TestThePromiseThatAnAllocKeeps(t *testing.T) {
	for name, row := range map[string]struct {
		promises []*Assumed
		alloc    nomad.Alloc
		want     string
	}{
		"there is none":             {nil, nomad.Alloc{Group: "g", NodeID: "a"}, ""},
		"only one of another group": {[]*Assumed{promised("1", "other", "a", 0)}, nomad.Alloc{Group: "g", NodeID: "a"}, ""},
		"the one for its node":      {[]*Assumed{promised("1", "g", "b", 0), promised("2", "g", "a", 0)}, nomad.Alloc{Group: "g", NodeID: "a"}, "2"},
		"any of its group":          {[]*Assumed{promised("1", "g", "b", 0)}, nomad.Alloc{Group: "g", NodeID: "a"}, "1"},
		"of several the first":      {[]*Assumed{promised("3", "g", "a", 0), promised("2", "g", "a", 0), promised("1", "g", "b", 0)}, nomad.Alloc{Group: "g", NodeID: "a"}, "2"},
	} {
		p := newPromises()
		for _, a := range row.promises {
			p.put(a)
		}
		row.alloc.Namespace, row.alloc.Job = oneJob.Namespace, oneJob.ID
		if got := p.keptBy(&row.alloc); got != row.want {
			t.Errorf("%s: it keeps %q, want %q", name, got, row.want)
		}
	}
}

// A promise that is not kept in time is late; one to a job that Nomad does not have is so sooner,
// and one for which room is being made is not.
func TestLatePromises(t *testing.T) {
	for name, row := range map[string]struct {
		ago                 time.Duration
		known, kept, making bool
		late                bool
	}{
		"as old as an unknown job's may be": {Unseen, false, false, false, false},
		"older":                             {Unseen + 1, false, false, false, true},
		"of a job that came":                {Unseen + 1, true, false, false, false},
		"as old as any may be":              {Unplaced, true, false, false, false},
		"older than any may be":             {Unplaced + 1, true, false, false, true},
		"room is being made for it":         {Unplaced + 1, true, true, true, false},
		"room is being made for another":    {Unplaced + 1, true, true, false, true},
		"it is not one of those":            {Unplaced + 1, true, false, true, true},
	} {
		p, making := newPromises(), map[nomad.JobKey]bool{}
		a := promised("1", "g", "a", row.ago)
		a.Kept, making[oneJob] = row.kept, row.making
		p.put(a)
		late := slices.Collect(p.late(noon, func(nomad.JobKey) bool { return row.known }, making))
		if len(late) == 1 != row.late {
			t.Errorf("%s: late are %q", name, late)
		}
	}
}

// Promises to a group have IDs of their own, also after some of them ended.
func TestPromisesHaveIDsOfTheirOwn(t *testing.T) {
	p := newPromises()
	for range 3 {
		p.put(promised(p.freeID(oneJob, "g"), "g", "a", 0))
	}
	p.remove("assumed:default/one/g#0")
	if id := p.freeID(oneJob, "g"); p.promise(id) != nil || p.Assumed(oneJob, "g") != 2 {
		t.Errorf("%q is free, %d are left", id, p.Assumed(oneJob, "g"))
	}
	for _, a := range p.AllAssumed() {
		p.remove(a.Usage.ID)
	}
	if p.anyAssumed(oneJob) || len(p.byJob) != 0 {
		t.Errorf("left of none: %v", p.byJob)
	}
}
