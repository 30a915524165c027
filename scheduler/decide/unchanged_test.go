// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
)

// What is kept for a job that its author submitted again as it was: what still has to start, and
// nothing for what has ended. A job that has not started yet keeps all, and so does one that the
// service does not see as it was submitted.
func TestWhatIsKeptForAJobSubmittedUnchanged(t *testing.T) {
	for name, row := range map[string]struct {
		kind        string
		runs, ended int // of three
		dead        bool
		later       bool // Nomad is heard of up to a time before the job was changed last
		purged      bool
		blocked     bool // the rest waits
		kept        int
	}{
		"nothing has started":             {kind: "batch", kept: 3},
		"some have completed":             {kind: "batch", runs: 1, ended: 2},
		"some have completed, one waits":  {kind: "batch", ended: 2, blocked: true, kept: 1},
		"a part was seen":                 {kind: "batch", ended: 2, later: true, kept: 3},
		"all have completed":              {kind: "batch", ended: 3, dead: true},
		"all have completed, not yet so":  {kind: "batch", ended: 3},
		"all have, as of an earlier time": {kind: "batch", ended: 3, dead: true, later: true, kept: 3},
		"a service has ended":             {kind: "service", ended: 3, dead: true},
		"it was stopped and never ran":    {kind: "batch", dead: true},
		"it is gone":                      {kind: "batch", ended: 3, purged: true, kept: 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 1), servicetest.Machine("b", 1), servicetest.Machine("c", 1))
			a := servicetest.Ask("job", "16G", 3)
			a.JobType = row.kind
			s.Submit(t, a)
			s.Register(a)
			for i := range row.runs + row.ended {
				s.Run(a, "alloc-"+string(rune('a'+i)), string(rune('a'+i)), 0, 0, 16)
			}
			s.Pass(time.Minute)
			for i := range row.ended {
				s.End("alloc-" + string(rune('a'+i)))
			}
			key := servicetest.KeyOf(a)
			if row.dead {
				j := s.Job(key)
				s.Index++
				j.Index, j.Stopped, j.Ended = s.Index, true, row.ended > 0
				s.State.Apply([]nomad.Change{{Job: &j}}, s.Index)
			}
			if row.purged {
				s.Index++
				s.State.Apply([]nomad.Change{{JobGone: &key}}, s.Index)
			}
			if row.blocked {
				s.Block(a, 3-row.runs-row.ended)
			}
			s.LetTimePass()
			s.Submit(t, a)
			index := s.Index
			if row.later {
				index++
			}
			s.Unchanged([]admit.Ask{a}, index)
			if kept := len(s.AllAssumed()); kept != row.kept {
				t.Errorf("room is kept for %d, want %d", kept, row.kept)
			}
		})
	}
}
