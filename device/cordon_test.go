// SPDX-License-Identifier: MPL-2.0

package device

import (
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/inventory"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

func TestCordonIsNoticedAndStands(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/0")
	cordons := registry.OpenCordons(r.dir + "/data")
	if err := cordons.Add(uuid, "new fan"); err != nil {
		t.Fatal(err)
	}
	cordoned := func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/0"); return n == 0 }
	g, _ := find(r.until("it is cordoned", cordoned), "slice/H100/0")
	if text := g.Devices[0].HealthDesc; text != "cordoned: new fan" {
		t.Errorf("health description is %q", text)
	}
	r.firstWait = patience
	r.start("../e2e/topology/dgx-h100.hcl", dgxConfig)
	if g, n := find(r.groups(), "slice/H100/1"); n != 79 {
		t.Errorf("the first fingerprint after a restart has %d of 79: %s", n, g.Devices[0].HealthDesc)
	}
	r.until("it is cordoned after a restart", cordoned)
	if err := cordons.Remove(uuid); err != nil {
		t.Fatal(err)
	}
	r.until("it is free again", allHealthy)
	if err := cordons.Add("../../etc/passwd", ""); err == nil {
		t.Error("a path was taken for a UUID")
	}
}

// A task that ended a moment ago keeps the mode of its GPU, not its slices: they
// would take new work on a cordoned GPU.
func TestCordonClosesTheSlicesOfEndedTasks(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/0")
	state := r.openState()
	holding := func(n int) []gpu.Holding {
		return []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{n}}}
	}
	running := gpu.Lease{ID: "a.running", Phase: gpu.PhaseRunning, Holdings: holding(3)}
	ended := gpu.Lease{ID: "a.ended", Phase: gpu.PhaseEnded, EndedAt: time.Now().Add(-time.Second), Holdings: holding(4)}
	for _, lease := range []gpu.Lease{running, ended} {
		if err := state.WriteLease(lease); err != nil {
			t.Fatal(err)
		}
	}
	if err := registry.OpenCordons(r.dir+"/data").Add(uuid, "new fan"); err != nil {
		t.Fatal(err)
	}
	groups := r.until("one slice is left", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/0"); return n == 1 })
	g, _ := find(groups, "slice/H100/0")
	if !g.Devices[3].Healthy || g.Devices[4].HealthDesc != "cordoned: new fan" {
		t.Errorf("slice 3: %q, slice 4: %q", g.Devices[3].HealthDesc, g.Devices[4].HealthDesc)
	}
	known, err := inventory.Of(r.service.reconciler.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range known.Devices {
		if d.UUID == uuid && (d.Healthy != 1 || len(d.Tasks) != 1) {
			t.Errorf("the inventory shows %+v", d)
		}
	}
}
