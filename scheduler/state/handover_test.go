// SPDX-License-Identifier: MPL-2.0

package state

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What is noted is news to whoever looks at the page.
func TestWhatIsNotedIsNews(t *testing.T) {
	tx := &Tx{Reader: emptyReader(), handover: newHandover()}
	before := tx.Version()
	if tx.Note(view.Event{Kind: "move", Namespace: oneJob.Namespace, JobID: oneJob.ID, DryRun: true}); tx.Version() == before {
		t.Error("nothing has changed")
	}
}

// A job with one alloc has nothing that could be run again beside others.
func TestSeveral(t *testing.T) {
	for want, counts := range map[bool][][]int{false: {{}, {0}, {1}, {1, 0}}, true: {{2}, {1, 1}, {0, 2}, {3}}} {
		for _, list := range counts {
			j := &nomad.Job{}
			for _, n := range list {
				j.Groups = append(j.Groups, nomad.Group{Count: n})
			}
			if several(j) != want {
				t.Errorf("of groups of %v: %v", list, !want)
			}
		}
	}
}
