// SPDX-License-Identifier: MPL-2.0

package device

import (
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

// A driver that is upgraded under the plugin is seen, said, and served by the next
// process.
func TestUpgradedDriverNeedsANewProcess(t *testing.T) {
	r := newRig(t)
	const topology = "../e2e/topology/t4.hcl"
	r.start(topology, "")
	r.until("all is healthy", allHealthy)
	select {
	case <-r.Outdated():
		t.Fatal("outdated before the upgrade")
	default:
	}
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{Driver: "580.95.05"}); err != nil {
		t.Fatal(err)
	}
	groups := r.until("nothing works", func(g []*device.DeviceGroup) bool { _, n := find(g, "gpu/Tesla T4"); return n == 0 })
	if why := groups[0].Devices[0].HealthDesc; !strings.HasPrefix(why, "driver-mismatch: ") || !strings.Contains(why, "reboot the node") {
		t.Errorf("it is said that %q", why)
	}
	<-r.Outdated()
	r.start(topology, "")
	groups = r.until("all is healthy again", allHealthy)
	if version := plan.AttributeText(groups[0].Attributes[gpu.AttrDriverVersion]); version != "580.95.05" {
		t.Errorf("the driver is %s", version)
	}
	select {
	case <-r.Outdated():
		t.Error("the new process is outdated")
	default:
	}
}

func TestUnifiedMemoryIsTheHosts(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/gb10.hcl", "mode = \"slice\"\nsharing = \"none\"")
	groups := r.until("it is healthy", allHealthy)
	// 122502 MiB, of which the system keeps 17 %.
	g, healthy := find(groups, "slice/GB10/0")
	if healthy != (122502-20825)/1024 || plan.AttributeText(g.Attributes[gpu.AttrMemory]) != "122502 MiB" {
		t.Errorf("%d slices of %s", healthy, plan.AttributeText(g.Attributes[gpu.AttrMemory]))
	}
	uuid := uuidOf(t, groups, "slice/GB10/0")
	r.happen(uuid, func(c *sim.Condition) { c.Processes = []sim.Process{{PID: 1, MemoryMiB: 700}} })
	reading, err := r.service.reconciler.platform.Observer.Reading(uuid, uuid)
	if err != nil || reading.MemoryUsedMiB != 700 || reading.MemoryTotalMiB != 122502 {
		t.Errorf("%d of %d MiB are used, %v", reading.MemoryUsedMiB, reading.MemoryTotalMiB, err)
	}
}

func TestFabricThatIsNotReadyIsAFault(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/hgx-h200.hcl", "")
	groups := r.until("all is healthy", allHealthy)
	first, second := groups[0].Devices[0].ID, groups[0].Devices[1].ID
	r.happen(first, func(c *sim.Condition) { c.FabricState = 2 })
	r.happen(second, func(c *sim.Condition) { c.FabricStatus = 15 })
	r.until("both are ill", func(g []*device.DeviceGroup) bool {
		return strings.HasPrefix(g[0].Devices[0].HealthDesc, "fabric-not-ready: ") && strings.HasPrefix(g[0].Devices[1].HealthDesc, "fabric-failed: ")
	})
	if _, n := find(r.groups(), "gpu/NVIDIA H200"); n != 6 {
		t.Errorf("%d GPUs are healthy", n)
	}
	for _, uuid := range []string{first, second} {
		r.happen(uuid, func(c *sim.Condition) { c.FabricState, c.FabricStatus = 0, 0 })
	}
	r.until("the fabric is ready", allHealthy)
}

// A fault of one MIG instance is that of no other.
func TestFaultOfAMIGInstance(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/mixed.hcl", "")
	groups := r.until("all is healthy", allHealthy)
	g, _ := find(groups, "mig/3g.20gb")
	sick, well := g.Devices[0].ID, g.Devices[1].ID
	units := r.service.reconciler.published.Units()
	parent := units[slices.IndexFunc(units, func(u *plan.Unit) bool { return u.UUID == sick })].Parent
	r.listen(parent)
	r.happen(parent, func(c *sim.Condition) { c.XIDs = append(c.XIDs, 95); c.XIDInstance = sick; c.ProbeFails = true })
	r.until("it is ill alone", func(g []*device.DeviceGroup) bool {
		_, n := find(g, "mig/3g.20gb")
		return n == 1
	})
	states, err := r.openState().GPUs()
	if err != nil {
		t.Fatal(err)
	}
	faults := map[string]string{}
	for _, s := range states {
		faults[s.UUID] = faultCodes(s.Faults)
	}
	if faults[sick] != "xid-95" || faults[well] != "" || faults[parent] != "" {
		t.Errorf("faults are %v", faults)
	}
	// It outlives the plugin, and ends with a probe of that instance.
	r.start("../e2e/topology/mixed.hcl", "")
	r.until("it is ill still", func(g []*device.DeviceGroup) bool { _, n := find(g, "mig/3g.20gb"); return n == 1 })
	r.happen(parent, func(c *sim.Condition) { c.ProbeFails = false })
	r.until("it is well", allHealthy)
	// A GPU that is gone is gone with all its instances.
	r.listen(parent)
	r.happen(parent, func(c *sim.Condition) { c.XIDs = append(c.XIDs, 79); c.ProbeFails = true })
	r.until("both are ill", func(g []*device.DeviceGroup) bool { _, n := find(g, "mig/3g.20gb"); return n == 0 })
}
