// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/mps"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A fatal error of one program takes the GPU from all, so it is said whose it was,
// also when the program is gone by the time the log is read.
func TestServerFaultSaysWhoseItIs(t *testing.T) {
	alive := map[int]string{70: "/nomad/a/inner", 80: "/elsewhere", 90: "/nomad/b"}
	read := func(pid int) ([]cgroup.Group, error) {
		if path := alive[pid]; path != "" {
			return []cgroup.Group{{Path: path}}, nil
		}
		return nil, fs.ErrNotExist
	}
	memory := occupancy.NewCgroupMemory(read, time.Now)
	c := culprits{cgroups: memory.Of, found: map[string]culprit{}}
	u := &plan.Unit{UUID: testUUID(0)}
	on := func(id, cgroup, uuid string, phase gpu.Phase) gpu.Lease {
		return gpu.Lease{ID: id, AllocID: "alloc-" + id, Job: "job-" + id, Task: "web", Cgroup: cgroup, Phase: phase, Holdings: []gpu.Holding{{UUID: uuid}}}
	}
	leases := []gpu.Lease{on("a", "/nomad/a", testUUID(0), gpu.PhaseEnded), on("b", "/nomad/b", testUUID(1), gpu.PhaseRunning)}
	status := func(pid int, seconds int64) mps.Status {
		return mps.Status{Server: mps.ServerFault, Culprit: pid, Reason: "a client had a fatal GPU error", Since: time.Unix(seconds, 0)}
	}
	const task = "process 70 of task web of job job-a (allocation alloc-a) had a fatal GPU error"
	memory.Of(70) // as the meter does while it runs
	delete(alive, 70)
	for _, tc := range []struct {
		name       string
		status     mps.Status
		leases     []gpu.Lease
		says, held string
	}{
		{"it has ended, and its task", status(70, 1), leases, task, "a"},
		{"what was found stands", status(70, 1), nil, task, "a"},
		{"another fault, by a program of no task", status(80, 2), leases, "a client had a fatal GPU error", ""},
		{"by a task that is not on this GPU", status(90, 3), leases, "a client had a fatal GPU error", ""},
		{"the log does not tell", status(0, 4), leases, "a client had a fatal GPU error", ""},
		{"a process that is not known", status(4711, 5), leases, "a client had a fatal GPU error", ""},
	} {
		f, lease := c.serverFault(u, tc.status, tc.leases)
		if !strings.HasPrefix(f.Message, tc.says) || lease != tc.held || !f.Since.Equal(tc.status.Since) || !f.Fatal {
			t.Errorf("%s: %+v of lease %q", tc.name, f, lease)
		}
	}
}
