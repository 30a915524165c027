// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/cgroup"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

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
