// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A job that was held for its turn, and whose queue is full by the time when that has come, says that
// it waits for quota, once.
func TestWhatWaitsForQuotaByNowSaysSo(t *testing.T) {
	for name, full := range map[string]bool{"the queue is full": true, "the queue can pay": false} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, servicetest.Quick+servicetest.OneGPU+"queue \"other\" {\n gpus = 2\n namespaces = [\"other\"]\n}\n", servicetest.Machine("a", 2))
			another(t, s, "one", 0)
			first := servicetest.Ask("first", "2", 1)
			first.Namespace, first.Priority = "other", 70
			s.Submit(t, first)
			s.Register(first)
			s.Block(first, 1)
			s.LetTimePass()
			low := servicetest.Ask("low", "1", 1)
			low.Priority = 30
			if d := s.Submit(t, low); d.Hold == nil || d.Hold.Kind != view.WaitsForPriority {
				t.Fatalf("it waits for %+v, and is to wait for its turn", d.Hold)
			}
			s.Register(low)
			s.Block(low, 1)
			s.LetTimePass()
			if full {
				top := servicetest.Ask("top", "1", 1)
				top.Priority = 90
				s.Submit(t, top)
				s.Register(top)
				s.Run(top, "alloc-top", "a", 1, 0, 16)
				j := s.Job(servicetest.KeyOf(first))
				s.Index++
				j.Stopped, j.Index = true, s.Index
				s.State.Apply([]nomad.Change{{Job: &j}}, s.Index)
			}
			s.LetTimePass()
			times := 0
			for range 5 {
				if item := s.Next(nil, true); item != nil && item.Job == servicetest.KeyOf(low) {
					times++
					revise(t, s, low, item.Revision)
					s.Block(low, 1)
				}
				s.LetTimePass()
			}
			want := map[bool]string{true: view.WaitsForQuota, false: view.WaitsForPriority}[full]
			for _, p := range s.Cluster(t).Pending {
				if p.JobID == "low" && p.Kind != want {
					t.Errorf("it waits for %s: %s", p.Kind, p.Reason)
				}
			}
			if full != (times == 1) {
				t.Errorf("it was changed %d times", times)
			}
		})
	}
}
