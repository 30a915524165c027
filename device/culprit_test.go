package device

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
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
	p := testPreparer(t, testConfig(t, ""), &fleet.Platform{}, nil)
	p.Cgroups = memory.Of
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
		f, lease := p.serverFault(u, tc.status, tc.leases)
		if !strings.HasPrefix(f.Message, tc.says) || lease != tc.held || !f.Since.Equal(tc.status.Since) || !f.Fatal {
			t.Errorf("%s: %+v of lease %q", tc.name, f, lease)
		}
	}
}

// The daemon's log is read, the device takes no new work, and the driver is told.
func TestServerFaultIsPublished(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", slicedT4)
	uuid := uuidOf(t, r.until("all is healthy", allHealthy), "slice/T4/0")
	self := os.Getpid()
	own := ""
	for _, g := range must(cgroup.Of(self)) {
		if g.Path != "/" {
			own = g.Path
		}
	}
	if own == "" {
		t.Skip("this process is in no control group")
	}
	lease := gpu.Lease{ID: "a.web", AllocID: "a", Job: "train", Task: "web", Cgroup: own, Phase: gpu.PhaseRunning, StartedAt: time.Now(),
		Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{0}}}}
	if err := r.openState().WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	status := r.service.reconciler.mps.Status(uuid)
	log := fmt.Sprintf("[2026-11-22 09:00:00.000 Other 77] Client process %d encountered a fatal GPU error.\n", self)
	writeFile(t, filepath.Join(status.LogDir, "server.log"), log)
	writeFile(t, filepath.Join(status.ControlDir, "behavior"), "fault\n")
	var state gpu.GPUState
	eventually(t, "the driver is told", func() bool {
		var err error
		state, err = r.openState().GPU(uuid)
		return err == nil && state.MPS.Fault != nil
	})
	if state.MPS.FaultOf != "a.web" || !strings.Contains(state.MPS.Fault.Message, "of task web of job train (allocation a)") ||
		!strings.Contains(state.CordonReason, "of task web of job train") || len(state.Faults) > 0 {
		t.Errorf("the state is %+v, %+v", state, state.MPS)
	}
	writeFile(t, filepath.Join(status.ControlDir, "behavior"), "")
	eventually(t, "it is over", func() bool {
		state, err := r.openState().GPU(uuid)
		return err == nil && state.MPS.Fault == nil && state.MPS.Ready && !state.Cordoned
	})
}
