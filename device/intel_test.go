// SPDX-License-Identifier: MPL-2.0

package device

import (
	"maps"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

const intelTopology = "../e2e/topology/flex.hcl"

func TestIntelGPUsAndFunctionsAreOffered(t *testing.T) {
	r, m := newRig(t), cardsOf(t, intelTopology)
	r.start(intelTopology, "")
	groups := r.until("all is healthy", allHealthy)
	want := map[string][2]int{
		"intel/gpu/Intel Data Center GPU Flex 170": {1, 1},
		"intel/vf/7124m":           {2, 2},
		"intel/gpu/Intel Arc A770": {1, 1},
	}
	if got := groupSizes(groups); !maps.Equal(got, want) {
		t.Fatalf("groups are %v", got)
	}
	flex, _ := find(groups, "gpu/Intel Data Center GPU Flex 170")
	for key, want := range map[string]string{gpu.AttrType: "Flex170", gpu.AttrMemory: "14248 MiB", gpu.AttrNUMANode: "0", gpu.AttrUUID: m.CardUUID(0), gpu.AttrTiles: "1", gpu.AttrFunctions: "31", "power": "150 W", "cores_clock": "2050 MHz"} {
		if got := plan.AttributeText(flex.Attributes[key]); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	// xe does not tell how much memory there is: unknown must not become zero.
	if arc, _ := find(groups, "gpu/Intel Arc A770"); arc.Attributes[gpu.AttrMemory] != nil {
		t.Errorf("memory that the driver does not tell is %s", plan.AttributeText(arc.Attributes[gpu.AttrMemory]))
	} else if arc.Attributes[gpu.AttrFunctions] != nil {
		t.Error("a card that can have no virtual functions has some")
	}
	for id, want := range map[string]string{m.CardUUID(0): "0", m.PartitionUUID(1, 1): "2", m.PartitionUUID(1, 2): "3", m.CardUUID(2): "4"} {
		given, err := r.Reserve([]string{id})
		if err != nil || given.Envs[gpu.EnvZEAffinity] != want {
			t.Errorf("%s is at %q, %v; want %s", id, given.Envs[gpu.EnvZEAffinity], err, want)
		}
	}
}

func TestIntelFaultsHideOnlyWhatTheyConcern(t *testing.T) {
	hideOnlyWhatTheyConcern(t, intelTopology, "intel", map[string]faultRow{
		"fatal errors": {0, func(c *sim.Condition) { c.ECCUncorrected = 1 }, "gpu/Intel Data Center GPU Flex 170", 0, "fatal-errors", ""},
		"the link":     {1, func(c *sim.Condition) { c.LinkErrors = 1 }, "vf/7124m", 0, "pcie-fatal", ""},
		"unplugged":    {2, func(c *sim.Condition) { c.Missing = true }, "gpu/Intel Arc A770", 0, "gpu-missing", ""},
		"unbound":      {2, func(c *sim.Condition) { c.Lost = true }, "gpu/Intel Arc A770", 0, "gpu-missing", ""},
		"firmware":     {2, func(c *sim.Condition) { c.RemapFailed = true }, "gpu/Intel Arc A770", 0, "survivability-mode", ""},
	})
}

// Slices need to know how much memory there is; with dmem control groups the kernel
// tells, whatever the driver.
func TestIntelSlices(t *testing.T) {
	for name, dmem := range map[string]bool{"xe alone": false, "with dmem": true} {
		t.Run(name, func(t *testing.T) {
			r, m := newRig(t), cardsOf(t, intelTopology)
			if err := sim.WriteControl(r.dir+"/sim", sim.Control{Dmem: dmem}); err != nil {
				t.Fatal(err)
			}
			r.start(intelTopology, "gpu {\n vendor = \"intel\"\n mode = \"slice\"\n}")
			groups := r.until("the Flex has slices", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/Flex170/0"); return n == 13 })
			arc, healthy := find(groups, "slice/A770/2")
			if (arc != nil) != dmem || dmem && healthy != 15 {
				t.Errorf("the Arc has %d slices", healthy)
			}
			state, err := r.openState().GPU(m.CardUUID(2))
			if err != nil || (faultCodes(state.Faults) == "sharing-impossible") == dmem {
				t.Errorf("the Arc's faults are %v, %v", state.Faults, err)
			}
		})
	}
}

func TestIntelStatistics(t *testing.T) {
	r, m := newRig(t), cardsOf(t, intelTopology)
	r.start(intelTopology, "")
	r.until("all is healthy", allHealthy)
	uuid := m.CardUUID(0)
	see := r.service.reconciler.platform.Observer
	busy := func(seconds uint32) {
		r.happen(uuid, func(c *sim.Condition) {
			c.TemperatureC, c.EnergyJoules = 61, uint64(seconds)
			c.Processes = []sim.Process{{PID: 99, MemoryMiB: 2048, BusySeconds: seconds}}
		})
	}
	busy(1)
	first, err := see.Reading(uuid, uuid)
	if err != nil || first.TemperatureC != 61 || first.PowerWatts != -1 || first.PowerLimitWatts != 150 || first.MemoryTotalMiB != 14248 || first.GPUPercent != -1 {
		t.Errorf("the first reading is %+v, %v", first, err)
	}
	processes, err := see.Processes(uuid, uuid)
	for late := time.After(patience); err == nil && len(processes) == 0; {
		select {
		case <-late:
			t.Fatal("no process is seen on the card")
		case <-time.After(50 * time.Millisecond): // a scan of all processes stands for a moment
			processes, err = see.Processes(uuid, uuid)
		}
	}
	if err != nil || len(processes) != 1 || processes[0].PID != 99 || processes[0].MemoryMiB != 2048 {
		t.Errorf("processes are %+v, %v", processes, err)
	}
	if other, err := see.Processes(m.CardUUID(2), m.CardUUID(2)); err != nil || len(other) != 0 {
		t.Errorf("another card has %+v, %v", other, err)
	}
}

// xe counts cycles in place of time: a program's use is how many of the clock's it had.
func TestIntelProcessesUnderXe(t *testing.T) {
	r, m := newRig(t), cardsOf(t, intelTopology)
	r.start(intelTopology, "")
	r.until("all is healthy", allHealthy)
	uuid, see := m.CardUUID(2), r.service.reconciler.platform.Observer
	// Others look as well: whoever looks sees a quarter, however long ago was the last.
	for n, late := uint32(1), time.After(patience); ; n++ {
		r.happen(uuid, func(c *sim.Condition) {
			c.Processes = []sim.Process{{PID: 99, MemoryMiB: 512, BusySeconds: n, ClockSeconds: 4 * n}}
		})
		found, err := see.Processes(uuid, uuid)
		if err == nil && len(found) == 1 && found[0].MemoryMiB == 512 && found[0].Milli >= 249 && found[0].Milli <= 250 {
			return
		}
		select {
		case <-late:
			t.Fatalf("processes are %+v, %v", found, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
