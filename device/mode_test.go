// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A display server never ends, and has nothing of what a mode gives out.
func TestModeChangesBesideADisplayServer(t *testing.T) {
	r := dgx(t)
	groups := r.groups()
	drawn, computed := uuidOf(t, groups, "slice/H100/0"), uuidOf(t, groups, "slice/H100/1")
	self := uint32(os.Getpid())
	r.happen(drawn, func(c *sim.Condition) { c.Processes = []sim.Process{{PID: self, MemoryMiB: 40, Graphics: true}} })
	r.happen(computed, func(c *sim.Condition) {
		c.Processes = []sim.Process{{PID: self, MemoryMiB: 40, Graphics: true}, {PID: self + 1<<22, MemoryMiB: 400}}
	})
	want := fmt.Sprintf("waits for process %d to end, to change from slices of 1G with mps to whole", self+1<<22)
	// A command that only looks, at the next configuration, sees what the plugin will do.
	path := filepath.Join(r.dir, "next.hcl")
	writeFile(t, path, r.config("../e2e/topology/dgx-h100.hcl", `mode_change_delay = "0s"`))
	next, err := inventory.Take(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range next.Devices {
		if held := e.UUID == computed; (e.Mode == gpu.ModeSlice) != held || strings.Contains(e.Cordon, want) != held {
			t.Errorf("the inventory has %+v", e)
		}
	}
	r.start("../e2e/topology/dgx-h100.hcl", `mode_change_delay = "0s"`)
	r.until("the GPU with the display server has changed, and the other says why not", func(g []*device.DeviceGroup) bool {
		_, slices := find(g, "slice/H100/0")
		other, n := find(g, "slice/H100/1")
		return slices == -1 && n == 0 && strings.Contains(other.Devices[0].HealthDesc, want)
	})
}

func TestModeChangeWaitsForTheTask(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/0")
	state := r.openState()
	lease := gpu.Lease{ID: "a.task", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{3}}}}
	if err := state.WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	r.start("../e2e/topology/dgx-h100.hcl", `mode_change_delay = "0s"`)
	// The daemon of the slices is adopted meanwhile.
	groups := r.until("the others have changed", func(g []*device.DeviceGroup) bool {
		_, others := find(g, "slice/H100/1")
		_, n := find(g, "slice/H100/0")
		return others == -1 && n != 0
	})
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
	if got := plan.AttributeText(g.Attributes["timeslice"]); got != "short" {
		t.Errorf("attribute timeslice is %q", got)
	}
	if s, err := r.openState().GPU(uuidOf(t, groups, "shared/T4/0")); err != nil || s.Timeslice != "short" {
		t.Errorf("state is %+v, %v", s, err)
	}
	// The plugin's report is one thing, the GPU another.
	hardware, err := os.ReadFile(filepath.Join(r.dir, "sim", "hardware.json"))
	if err != nil || !regexp.MustCompile(`"timeslice": ?"short"`).Match(hardware) {
		t.Errorf("the GPU is %s, %v", hardware, err)
	}
}

// Each task that holds a part of a device will have a client, if it has none yet.
func TestTasksThatHoldADeviceCountAsClients(t *testing.T) {
	r := dgx(t)
	groups := r.groups()
	uuid := uuidOf(t, groups, "slice/H100/0")
	state := r.openState()
	for n := range 48 {
		lease := gpu.Lease{ID: fmt.Sprintf("a.task-%d", n), Phase: gpu.PhaseStarting, Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{n}}}}
		if err := state.WriteLease(lease); err != nil {
			t.Fatal(err)
		}
	}
	groups = r.until("the free instances are closed", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/0"); return n == 48 })
	g, _ := find(groups, "slice/H100/0")
	if got := g.Devices[50].HealthDesc; !strings.Contains(got, "its MPS server can have 48 clients, and as many tasks hold a part of it") {
		t.Errorf("the reason is %q", got)
	}
}

// An inventory is taken by another process: what only the running plugin knows,
// it must read from the state files.
func TestInventoryShowsWhatTheRunningPluginWaitsFor(t *testing.T) {
	r := dgx(t)
	groups := r.groups()
	full, busy := uuidOf(t, groups, "slice/H100/0"), uuidOf(t, groups, "slice/H100/1")
	r.happen(full, func(c *sim.Condition) {
		for pid := range uint32(48) {
			c.Processes = append(c.Processes, sim.Process{PID: 100000 + pid, MPS: true})
		}
	})
	r.happen(busy, func(c *sim.Condition) { c.Processes = []sim.Process{{PID: 4000000}} })
	r.start("../e2e/topology/dgx-h100.hcl", "gpu {\n uuid = \""+busy+"\"\n mode = \"whole\"\n}\n"+dgxConfig)
	r.until("one is full and one waits", func(g []*device.DeviceGroup) bool {
		_, n := find(g, "slice/H100/0")
		_, m := find(g, "slice/H100/1")
		return n == 0 && m == 0
	})
	known, err := inventory.Of(r.service.reconciler.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range known.Devices {
		want := map[string]string{full: "all 48 clients", busy: "waits for process 4000000 to end, to change from slices"}[d.UUID]
		if !strings.Contains(d.Cordon, want) || (want == "") != (d.Cordon == "") || d.Mode == gpu.ModeWhole && d.UUID == busy {
			t.Errorf("%s is %s, cordoned: %q", d.UUID, d.Mode, d.Cordon)
		}
	}
}
