// SPDX-License-Identifier: MPL-2.0

package occupancy

import (
	"io/fs"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
)

// The log of a daemon names processes that have ended by the time it is read.
func TestCgroupsAreKnownForAWhileAfterAProcess(t *testing.T) {
	now := time.Unix(0, 0)
	alive := map[int]string{70: "/nomad/a"}
	m := NewCgroupMemory(func(pid int) ([]cgroup.Group, error) {
		if path := alive[pid]; path != "" {
			return []cgroup.Group{{Path: path}}, nil
		}
		return nil, fs.ErrNotExist
	}, func() time.Time { return now })
	m.Of(70)
	delete(alive, 70)
	for _, step := range []struct {
		pid   int
		after time.Duration
		known bool
	}{{70, 0, true}, {80, 0, false}, {70, cgroupsKept, true}, {70, time.Second, false}} {
		now = now.Add(step.after)
		if groups := m.Of(step.pid); (groups != nil) != step.known {
			t.Errorf("process %d at %s: %v", step.pid, now.Sub(time.Unix(0, 0)), groups)
		}
	}
}
