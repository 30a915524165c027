// SPDX-License-Identifier: MPL-2.0

package decide_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/servicetest"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// What waits is told which GPU comes nearest and what that lacks, or that no node could ever
// hold it, also where it came around the service. Machine a has 6 GiB free on one GPU and 3 GiB
// on the other, b has a task on each of its two.
func TestWhatWaitsIsToldWhatItLacks(t *testing.T) {
	for name, c := range map[string]struct {
		ask    admit.Ask
		around bool
		says   string
		never  bool
	}{
		"memory":              {ask: servicetest.Ask("j", "8G", 1), says: "nearest is node a, where nvidia/slice/T4/0 lacks 2 GiB and 0.125 of its compute"},
		"memory alone":        {ask: servicetest.Ask("j", "8G,0.1", 1), says: "nearest is node a, where nvidia/slice/T4/0 lacks 2 GiB"},
		"compute":             {ask: servicetest.Ask("j", "2G,0.5", 1), says: "nearest is node a, where nvidia/slice/T4/0 lacks 0.125 of its compute"},
		"a whole GPU":         {ask: servicetest.Ask("j", "1", 1), says: "nearest is node a, where nvidia/slice/T4/0 is held by a task"},
		"a device block":      {ask: blocks("j", "nvidia/slice", 9), around: true, says: "nearest is node a, where nvidia/slice/T4/0 lacks 3 GiB"},
		"a block for no GPU":  {ask: blocks("j", "nvidia/slice", 80), around: true, says: "no node can ever hold it: 2 nodes: GPU memory too small", never: true},
		"a device that isn't": {ask: blocks("j", "nvidia/slices", 1), around: true, says: "no node can ever hold it: 2 nodes: ", never: true},
		"another model":       {ask: blocks("j", "nvidia/gpu/H200", 1), around: true, says: "no node can ever hold it: 2 nodes: ", never: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := servicetest.New(t, "", servicetest.Machine("a", 2), servicetest.Machine("b", 2))
			for i, slices := range []int{10, 13} {
				s.Tenant(t, fmt.Sprint("a", i), 50, "a", i, 0, slices)
				s.Tenant(t, fmt.Sprint("b", i), 50, "b", i, 0, 14)
			}
			if c.around {
				s.Show(c.ask, false)
				s.Block(c.ask, 1)
			} else {
				waits(t, s, c.ask)
			}
			s.Pass(0)
			fits(t, s)
			i := -1
			pending := s.Cluster(t).Pending
			for k := range pending {
				if pending[k].JobID == "j" {
					i = k
				}
			}
			if i < 0 {
				t.Fatalf("it does not wait: %+v", pending)
			}
			p := pending[i]
			if !strings.Contains(p.Reason, c.says) || p.Kind != view.WaitsForRoom || c.never && (p.Start != nil || strings.Contains(p.Reason, "no node has room now")) {
				t.Errorf("people see %+v, want %q", p, c.says)
			}
		})
	}
}
