// SPDX-License-Identifier: MPL-2.0

package device

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// until waits for something that no fingerprint tells.
func eventually(t *testing.T, what string, wanted func() bool) {
	t.Helper()
	for limit := time.After(patience); !wanted(); {
		select {
		case <-limit:
			t.Fatalf("gave up waiting until %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The reset that a fault asks for is done while Nomad runs: when no program is on
// the GPU any more, its daemon's included, and not before.
func TestReleaseResetsAnEmptyGPU(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", "mode = \"slice\"")
	groups := r.until("all is healthy", allHealthy)
	uuid := uuidOf(t, groups, "slice/T4/0")
	daemon := r.service.reconciler.mps.Status(uuid).PID
	r.listen(uuid)
	r.happen(uuid, func(c *sim.Condition) {
		c.XIDs = append(c.XIDs, 48)
		c.ProbeFails = true
		c.Processes = []sim.Process{{PID: 4294967, MemoryMiB: 5}}
	})
	r.until("it is ill", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/T4/0"); return n == 0 })
	releases := registry.OpenReleases(r.dir + "/data")
	if err := releases.Add(uuid, registry.ReleaseReset); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is cordoned", func() bool {
		for _, s := range must(r.openState().GPUs()) {
			if s.UUID == uuid && strings.Contains(s.CordonReason, "released") {
				return true
			}
		}
		return false
	})
	if !releases.Has(uuid) || r.service.reconciler.mps.Status(uuid).PID != daemon {
		t.Error("it was released under a program")
	}
	r.happen(uuid, func(c *sim.Condition) { c.Processes = nil })
	eventually(t, "it is released", func() bool { return !releases.Has(uuid) })
	r.until("it is well", allHealthy)
	if registry.OpenCordons(r.dir + "/data").Has(uuid) {
		t.Error("it is cordoned")
	}
	if now := r.service.reconciler.mps.Status(uuid).PID; now == 0 || now == daemon {
		t.Errorf("its daemon was %d and is %d", daemon, now)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
