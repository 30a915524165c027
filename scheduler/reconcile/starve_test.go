// SPDX-License-Identifier: MPL-2.0

package reconcile

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// smallJobs is a stream of batch jobs of one GPU and priority 50, which each run for 40 to 100
// seconds: so many wait or run at any time.
type smallJobs struct {
	*modelRun
	made int
	ends map[string]int // by job: the second, or -1 before it runs
}

func (s *smallJobs) fill(t *testing.T, to int) {
	t.Helper()
	for len(s.ends) < to {
		id := fmt.Sprintf("small%d", s.made)
		s.made++
		s.submit(t.Context(), json.RawMessage(strings.Replace(string(slowJob("c", id, "0", 1, 50, "")), `"service"`, `"batch"`, 1)))
		s.ends[id] = -1
	}
}

// pass lets a second go by, and ends what is over.
func (s *smallJobs) pass(now int) {
	s.seconds(1)
	live := map[string]bool{}
	for _, a := range s.allocs {
		live[a.stub.JobID] = true
	}
	for id, end := range s.ends {
		switch {
		case live[id] && end < 0:
			s.ends[id] = now + 40 + (s.made*7)%60
		case end > 0 && now >= end:
			s.stop(s.jobs["c/"+id])
			delete(s.ends, id)
		}
	}
}

// A gang beside a stream of jobs of one GPU each gets its turn, as what asks for two GPUs does:
// its nodes are kept for it against those that come later with the same priority after a minute,
// and against lower priorities at once.
func TestAGangIsNotStarvedBySmallJobs(t *testing.T) {
	spread := func(raw json.RawMessage) json.RawMessage {
		return json.RawMessage(strings.Replace(string(raw), `"Name": "g", `, `"Name": "g", "Constraints": [{"Operand": "distinct_hosts", "RTarget": "true"}], `, 1))
	}
	const preempts, keeps = "preemption {\n min_run_time = \"0s\"\n}\n", "preemption {\n enabled = false\n}\n"
	for name, c := range map[string]struct {
		config string
		raw    json.RawMessage
		most   int // seconds until it runs: until they are its turn, and as long as what is in its way runs
	}{
		"two GPUs":                       {preempts, json.RawMessage(strings.Replace(string(slowJob("c", "big", "0", 1, 50, "")), `"gpu": "1"`, `"gpu": "2"`, 1)), 180},
		"a gang of 2":                    {preempts, gangJob("big", 2, 50), 180},
		"a gang of 3":                    {preempts, gangJob("big", 3, 50), 180},
		"a gang of 4":                    {preempts, gangJob("big", 4, 50), 180},
		"a gang of 2, on a node each":    {preempts, spread(gangJob("big", 2, 50)), 180},
		"a gang of 4 of two groups":      {preempts, json.RawMessage(strings.ReplaceAll(string(twoGroups("c", 2, 2)), `"gang"`, `"big"`)), 180},
		"higher, on a node each":         {preempts, spread(gangJob("big", 2, 90)), 120},
		"higher, nothing may be evicted": {keeps, gangJob("big", 4, 90), 120},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &smallJobs{newRun(t, 2, 2, c.config), 0, map[string]int{}}
				s.schedulers = 1 // of several, each may give what comes free to a small one that waits behind it
				s.fill(t, 6)
				s.seconds(5)
				s.submit(t.Context(), c.raw)
				for now := range c.most {
					s.pass(now)
					if strings.Contains(s.running(), "c/big") {
						t.Logf("it ran after %d s; %d small ones were submitted", now, s.made)
						return
					}
					s.fill(t, 8)
				}
				t.Errorf("it does not run after %d s; %d small ones were submitted\n%s", c.most, s.made, strings.Join(s.log, "\n"))
			})
		})
	}
}
