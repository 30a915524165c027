package device

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestModeChangeWaitsForTheTask(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/0")
	state := r.openState()
	lease := gpu.Lease{ID: "a.task", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{3}}}}
	if err := state.WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	r.start("../e2e/topology/dgx-h100.hcl", `mode_change_delay = "0s"`)
	groups := r.until("the others have changed", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/1"); return n == -1 })
	g, n := find(groups, "slice/H100/0")
	if n < 0 {
		t.Fatal("the group in use was withdrawn")
	}
	if text := g.Devices[0].HealthDesc; !strings.Contains(text, "waits for its tasks to end, to change from slices of 1G with mps to whole") {
		t.Errorf("health description is %q", text)
	}
	if n != 1 {
		t.Errorf("%d slices are healthy, one is held", n)
	}
	lease.Phase, lease.EndedAt = gpu.PhaseEnded, time.Now().Add(-time.Second)
	if err := state.WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	r.until("it has changed too", func(g []*device.DeviceGroup) bool { _, n := find(g, "gpu/NVIDIA H100 80GB HBM3"); return n == 6 })
	// The daemons of the GPUs that left the mode end.
	for {
		if entries, err := os.ReadDir(r.dir + "/run/mps"); err != nil || len(entries) == 0 {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("daemons are left")
		}
	}
}

func TestTimesliceIsSetAndVerified(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", "mode = \"shared\"\ntimeslice = \"short\"")
	groups := r.until("the length is set", allHealthy)
	g, _ := find(groups, "shared/T4/0")
	if got := attributeText(g.Attributes["timeslice"]); got != "short" {
		t.Errorf("attribute timeslice is %q", got)
	}
	if s, err := r.openState().GPU(uuidOf(t, groups, "shared/T4/0")); err != nil || s.Timeslice != "short" {
		t.Errorf("state is %+v, %v", s, err)
	}
}
