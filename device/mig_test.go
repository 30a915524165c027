// SPDX-License-Identifier: MPL-2.0

package device

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

func TestFaultOfAMIGParent(t *testing.T) {
	r := dgx(t)
	state := r.openState()
	groups := r.groups()
	g, _ := find(groups, "mig/3g.40gb")
	s, err := state.GPU(g.Devices[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	r.happen(s.ParentUUID, func(c *sim.Condition) { c.RemapFailed = true })
	groups = r.until("its instances are unhealthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "mig/3g.40gb"); return n == 0 })
	if _, n := find(groups, "mig/1g.10gb"); n != 7 {
		t.Errorf("%d small instances are healthy, seven are on another GPU", n)
	}
	r.happen(s.ParentUUID, func(c *sim.Condition) { c.RemapFailed = false })
	r.until("all is healthy again", allHealthy)
}

func TestDeclaredMIGLayoutIsMade(t *testing.T) {
	r := newRig(t)
	config := `
		gpu {
			model    = "A100"
			mode     = "mig"
			profiles = ["3g.40gb", "1g.10gb", "1g.10gb"]
		}`
	r.start("../e2e/topology/dgx-a100.hcl", config)
	r.until("eight GPUs are laid out", func(g []*device.DeviceGroup) bool {
		_, large := find(g, "mig/3g.40gb")
		_, small := find(g, "mig/1g.10gb")
		return large == 8 && small == 16
	})
	before := r.groups()
	r.start("../e2e/topology/dgx-a100.hcl", config)
	after := r.groups()
	if !plan.SameGroups(before, after) {
		t.Errorf("a restart changed\n%sto\n%s", describeGroups(before), describeGroups(after))
	}
	// A reboot forgets what was laid out.
	r.Close()
	if err := os.Remove(r.dir + "/sim/hardware.json"); err != nil {
		t.Fatal(err)
	}
	r.start("../e2e/topology/dgx-a100.hcl", config)
	r.until("it is laid out again", func(g []*device.DeviceGroup) bool { return plan.SameGroups(before, g) })
}

func TestImpossibleMIGLayoutSaysWhy(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", "mode = \"whole\"\ngpu {\n mode = \"mig\"\n profiles = [\"1g.10gb\"]\n}")
	state := r.openState()
	for {
		states, err := state.GPUs()
		if err != nil {
			t.Fatal(err)
		}
		if len(states) == 2 && len(states[0].Faults) > 0 {
			if f := states[0].Faults[0]; f.Code != "mig-layout-failed" || !strings.Contains(f.Message, "the GPU has no MIG") {
				t.Errorf("fault is %+v", f)
			}
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

// An instance that NVML cannot read must not vanish: Nomad would forget what
// tasks hold of it. What is known of it stands, unhealthy, until it is read again.
func TestMIGInstancesThatCannotBeReadStay(t *testing.T) {
	for _, call := range []string{"GetAttributes", "GetMigDeviceHandleByIndex", "GetMaxMigDeviceCount", "GetMigMode"} {
		t.Run(call, func(t *testing.T) {
			r := dgx(t)
			before, _ := find(r.groups(), "mig/3g.40gb")
			s, err := r.openState().GPU(before.Devices[0].ID)
			if err != nil {
				t.Fatal(err)
			}
			r.happen(s.ParentUUID, func(c *sim.Condition) { c.Errors = map[string]int{call: int(nvml.ERROR_UNKNOWN)} })
			groups := r.until("they are unhealthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "mig/3g.40gb"); return n == 0 })
			after, _ := find(groups, "mig/3g.40gb")
			if len(after.Devices) != len(before.Devices) || after.Devices[0].ID != before.Devices[0].ID {
				t.Errorf("there were %d instances, there are %d", len(before.Devices), len(after.Devices))
			}
			if text := after.Devices[0].HealthDesc; !strings.HasPrefix(text, "nvml-error: NVML failed (") || !strings.Contains(text, "since 20") {
				t.Errorf("health description is %q", text)
			}
			if plan.AttributeText(after.Attributes["memory"]) != plan.AttributeText(before.Attributes["memory"]) {
				t.Errorf("memory was %s and is %s", plan.AttributeText(before.Attributes["memory"]), plan.AttributeText(after.Attributes["memory"]))
			}
			if _, n := find(groups, "mig/1g.10gb"); n != 7 {
				t.Errorf("%d small instances are healthy, seven are on another GPU", n)
			}
			r.happen(s.ParentUUID, func(c *sim.Condition) { c.Errors = nil })
			if !plan.SameGroups(r.until("all is healthy again", allHealthy), r.groups()) {
				t.Error("it came back as something else")
			}
		})
	}
}
