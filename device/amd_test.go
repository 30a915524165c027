// SPDX-License-Identifier: MPL-2.0

package device

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/telemetry"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

const amdTopology = "../e2e/topology/mi300x.hcl"

func cardsOf(t *testing.T, path string) *sim.Topology {
	t.Helper()
	topology, err := sim.ReadTopology(path, "")
	if err != nil {
		t.Fatal(err)
	}
	return topology
}

// groupSizes counts the instances of each group, and those that are healthy.
func groupSizes(groups []*device.DeviceGroup) map[string][2]int {
	sizes := map[string][2]int{}
	for _, g := range groups {
		_, healthy := find(groups, g.Type+"/"+g.Name)
		sizes[plan.GroupName{Vendor: g.Vendor, Kind: g.Type, Name: g.Name}.String()] = [2]int{len(g.Devices), healthy}
	}
	return sizes
}

func TestAMDGPUsAndPartitionsAreOffered(t *testing.T) {
	r, m := newRig(t), cardsOf(t, amdTopology)
	r.start(amdTopology, "")
	groups := r.until("all is healthy", allHealthy)
	want := map[string][2]int{
		"amd/partition/cpx-nps4":          {16, 16},
		"amd/gpu/AMD Instinct MI300X OAM": {1, 1},
		"amd/gpu/AMD Instinct MI210":      {2, 2},
	}
	if got := groupSizes(groups); !maps.Equal(got, want) {
		t.Fatalf("groups are %v", got)
	}
	whole, _ := find(groups, "gpu/AMD Instinct MI300X OAM")
	for key, want := range map[string]string{gpu.AttrModel: "AMD Instinct MI300X OAM", gpu.AttrType: "MI300X", gpu.AttrMemory: "196592 MiB",
		gpu.AttrTarget: "gfx942", gpu.AttrNUMANode: "0", gpu.AttrUUID: m.CardUUID(2), gpu.AttrPCI: m.CardPCI(2), gpu.AttrGrade: "hardware", "power": "750 W"} {
		if got := plan.AttributeText(whole.Attributes[key]); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	if a := whole.Attributes[gpu.AttrCUDAVersion]; a != nil {
		t.Errorf("an AMD GPU has a CUDA version: %s", plan.AttributeText(a))
	}
	closeness := plan.AttributeText(whole.Attributes[gpu.AttrCloseness])
	if !strings.Contains(closeness, "xgmi:4=") {
		t.Errorf("closeness is %s", closeness)
	}
	parts, _ := find(groups, "partition/cpx-nps4")
	if got := plan.AttributeText(parts.Attributes[gpu.AttrMemory]); got != "24558 MiB" {
		t.Errorf("a partition has %s", got)
	}
	if !slices.ContainsFunc(parts.Devices, func(d *device.Device) bool { return d.ID == m.PartitionUUID(1, 7) }) {
		t.Errorf("there is no %s", m.PartitionUUID(1, 7))
	}
}

// Any driver gets the names by which ROCm knows the devices.
func TestAMDReservationsNameWhatROCmKnows(t *testing.T) {
	r, m := newRig(t), cardsOf(t, amdTopology)
	r.start(amdTopology, "")
	r.until("all is healthy", allHealthy)
	for _, tc := range []struct {
		ids       []string
		rocr, hip string
	}{
		{[]string{m.CardUUID(2)}, m.CardUUID(2), "0"},
		{[]string{m.PartitionUUID(0, 3)}, "3", "0"},
		{[]string{m.PartitionUUID(1, 0)}, "8", "0"},
	} {
		given, err := r.Reserve(tc.ids)
		if err != nil {
			t.Fatal(err)
		}
		if given.Envs[gpu.EnvROCRVisible] != tc.rocr || given.Envs[gpu.EnvHIPVisible] != tc.hip || given.Envs[gpu.EnvNVIDIAVisible] != "" {
			t.Errorf("%v: %v", tc.ids, given.Envs)
		}
	}
	both, err := r.Reserve([]string{m.CardUUID(3), m.CardUUID(4)})
	if err != nil || both.Envs[gpu.EnvHIPVisible] != "0,1" || strings.Count(both.Envs[gpu.EnvROCRVisible], "GPU-") != 2 {
		t.Errorf("two GPUs: %v, %v", both, err)
	}
}

func TestAMDFaultsHideOnlyWhatTheyConcern(t *testing.T) {
	hideOnlyWhatTheyConcern(t, amdTopology, "amd", map[string]faultRow{
		"RAS":              {2, func(c *sim.Condition) { c.ECCUncorrected = 1 }, "gpu/AMD Instinct MI300X OAM", 0, "ras-memory", ""},
		"a page":           {3, func(c *sim.Condition) { c.RemapFailed = true }, "gpu/AMD Instinct MI210", 1, "page-retirement-failed", ""},
		"a link":           {3, func(c *sim.Condition) { c.LinkErrors = 2 }, "gpu/AMD Instinct MI210", 1, "ras-xgmi", ""},
		"unplugged":        {4, func(c *sim.Condition) { c.Missing = true }, "gpu/AMD Instinct MI210", 1, "gpu-missing", ""},
		"a lost partition": {0, func(c *sim.Condition) { c.LostPartitions = []int{5} }, "partition/cpx-nps4", 15, "partition-lost", ""},
		"RAS of all parts": {1, func(c *sim.Condition) { c.ECCUncorrected = 1 }, "partition/cpx-nps4", 8, "ras-memory", ""},
	})
}

// A GPU that the driver has given up stays unhealthy until it works again.
func TestWedgedGPU(t *testing.T) {
	for topology, tc := range map[string]struct {
		card  int
		group string
	}{amdTopology: {2, "gpu/AMD Instinct MI300X OAM"}, intelTopology: {2, "gpu/Intel Arc A770"}} {
		t.Run(tc.group, func(t *testing.T) { wedge(t, topology, tc.card, tc.group) })
	}
}

func wedge(t *testing.T, topology string, card int, group string) {
	r, m := newRig(t), cardsOf(t, topology)
	r.start(topology, "")
	r.until("all is healthy", allHealthy)
	uuid := m.CardUUID(card)
	ill := make(chan struct{})
	told := make(chan error)
	go func() { // events are told to those who listen already
		for {
			select {
			case <-ill:
				told <- nil
				return
			case <-time.After(200 * time.Millisecond):
				if err := sim.Update(r.dir+"/sim", uuid, func(c *sim.Condition) { c.Uevents = append(c.Uevents, "WEDGED=rebind,bus-reset"); c.ProbeFails = true }); err != nil {
					told <- err
					return
				}
			}
		}
	}()
	groups := r.until("it is ill", func(g []*device.DeviceGroup) bool { _, n := find(g, group); return n == 0 })
	close(ill)
	if err := <-told; err != nil {
		t.Fatal(err)
	}
	g, _ := find(groups, group)
	if why := g.Devices[0].HealthDesc; !strings.HasPrefix(why, "event-gpu-wedged: ") || !strings.Contains(why, "bus-reset") {
		t.Errorf("it is said that %q", why)
	}
	r.start(topology, "") // it outlives the plugin
	r.until("it is ill still", func(g []*device.DeviceGroup) bool { _, n := find(g, group); return n == 0 })
	r.happen(uuid, func(c *sim.Condition) { c.ProbeFails = false })
	r.until("it is well", allHealthy)
}

// A driver that is reloaded takes every GPU of the vendor away for a while, and none
// of another's.
func TestAMDDriverReload(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/vendors.hcl", "")
	before := groupSizes(r.until("all is healthy", allHealthy))
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{NoDriver: []string{"amd"}}); err != nil {
		t.Fatal(err)
	}
	groups := r.until("AMD's are ill", func(g []*device.DeviceGroup) bool { _, n := find(g, "partition/cpx-nps4"); return n == 0 })
	for group, size := range groupSizes(groups) {
		if strings.HasPrefix(group, "amd/") != (size[1] == 0) || size[0] != before[group][0] {
			t.Errorf("%s: %v, before %v", group, size, before[group])
		}
	}
	if g, _ := find(groups, "partition/cpx-nps4"); !strings.HasPrefix(g.Devices[0].HealthDesc, "amdgpu-absent: ") {
		t.Errorf("it is said that %q", g.Devices[0].HealthDesc)
	}
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{Drivers: map[string]string{"amd": "6.14.0"}}); err != nil {
		t.Fatal(err)
	}
	groups = r.until("all is healthy again", allHealthy)
	g, _ := find(groups, "partition/cpx-nps4")
	if version := plan.AttributeText(g.Attributes[gpu.AttrDriverVersion]); version != "6.14.0" {
		t.Errorf("the driver is %s", version)
	}
}

func TestAMDSlices(t *testing.T) {
	const rule = "gpu {\n vendor = \"amd\"\n model = \"MI210\"\n mode = \"slice\"\n %s\n}"
	for name, tc := range map[string]struct {
		sharing string
		dmem    bool
		healthy int
		grade   string
		says    string
	}{
		"counted":            {"", false, 63, "none", ""},
		"limited by dmem":    {`sharing = "dmem"`, true, 63, "enforced", ""},
		"without the kernel": {`sharing = "dmem"`, false, 0, "enforced", "sharing-impossible: sharing \"dmem\""},
		"with NVIDIA's":      {`sharing = "mps"`, false, 0, "cooperative", "sharing-impossible: sharing \"mps\": amd devices know none, timeslice, dmem"},
	} {
		t.Run(name, func(t *testing.T) {
			r, m := newRig(t), cardsOf(t, amdTopology)
			if err := sim.WriteControl(r.dir+"/sim", sim.Control{Dmem: tc.dmem}); err != nil {
				t.Fatal(err)
			}
			r.start(amdTopology, strings.Replace(rule, "%s", tc.sharing, 1))
			groups := r.until("it is as wanted", func(g []*device.DeviceGroup) bool {
				all, n := find(g, "slice/MI210/3")
				return all != nil && n == tc.healthy
			})
			g, _ := find(groups, "slice/MI210/3")
			if plan.AttributeText(g.Attributes[gpu.AttrGrade]) != tc.grade || len(g.Devices) != 63 {
				t.Errorf("%d slices, grade %s", len(g.Devices), plan.AttributeText(g.Attributes[gpu.AttrGrade]))
			}
			if tc.says != "" && !strings.HasPrefix(g.Devices[0].HealthDesc, tc.says) {
				t.Errorf("it is said that %q", g.Devices[0].HealthDesc)
			}
			state, err := r.openState().GPU(m.CardUUID(3))
			if err != nil || (state.Dmem != "") != (tc.dmem && tc.healthy > 0) {
				t.Errorf("the driver is told the region %q, %v", state.Dmem, err)
			}
		})
	}
}

// A partition mode that the configuration declares is made, once.
func TestAMDPartitionModeIsMade(t *testing.T) {
	r, m := newRig(t), cardsOf(t, amdTopology)
	r.start(amdTopology, "gpu {\n uuid = \""+m.CardUUID(2)+"\"\n mode = \"partition\"\n profiles = [\"dpx-nps1\"]\n}")
	groups := r.until("it has two partitions", func(g []*device.DeviceGroup) bool { _, n := find(g, "partition/dpx-nps1"); return n == 2 })
	if g, _ := find(groups, "gpu/AMD Instinct MI300X OAM"); g != nil {
		t.Error("the GPU is offered as a whole beside its partitions")
	}
}

func TestAMDStatistics(t *testing.T) {
	r, m := newRig(t), cardsOf(t, amdTopology)
	r.start(amdTopology, "")
	r.until("all is healthy", allHealthy)
	whole, part := m.CardUUID(2), m.PartitionUUID(0, 2)
	r.happen(whole, func(c *sim.Condition) {
		c.GPUPercent, c.TemperatureC, c.PowerWatts = 80, 66, 500
		c.Processes = []sim.Process{{PID: uint32(os.Getpid()), MemoryMiB: 4096, Percent: 50}}
	})
	r.happen(m.CardUUID(0), func(c *sim.Condition) {
		c.Processes = []sim.Process{{PID: 77, MemoryMiB: 1000, Percent: 100, Instance: part}}
	})
	see := r.service.reconciler.platform.Observer
	reading, err := see.Reading(whole, whole)
	if err != nil || reading.GPUPercent != 80 || reading.TemperatureC != 66 || reading.PowerWatts != 500 || reading.PowerLimitWatts != 750 ||
		reading.MemoryUsedMiB != 4396 || reading.MemoryTotalMiB != 196592 || reading.EncoderPercent != -1 || reading.BAR1TotalMiB != -1 {
		t.Errorf("the GPU reads %+v, %v", reading, err)
	}
	processes, err := see.Processes(whole, whole)
	if err != nil || len(processes) != 1 || processes[0].PID != os.Getpid() || processes[0].MemoryMiB != 4096 || processes[0].Milli != 500 {
		t.Errorf("processes are %+v, %v", processes, err)
	}
	reading, err = see.Reading(m.CardUUID(0), part)
	if err != nil || reading.MemoryUsedMiB != 1000 || reading.MemoryTotalMiB != 24574 || reading.GPUPercent != 100 || reading.PowerWatts != -1 || reading.TemperatureC != -1 {
		t.Errorf("the partition reads %+v, %v", reading, err)
	}
	if reading, err = see.Reading(m.CardUUID(0), m.PartitionUUID(0, 3)); err != nil || reading.GPUPercent != 0 {
		t.Errorf("the partition beside it reads %+v, %v", reading, err)
	}
	for n := range 8 {
		processes, err := see.Processes(m.CardUUID(0), m.PartitionUUID(0, n))
		if err != nil || len(processes) != map[bool]int{true: 1}[n == 2] {
			t.Errorf("partition %d has %+v, %v", n, processes, err)
		}
	}
}

// Each vendor's devices have the names of their own exporter, and none of another's.
func TestMetricsCarryTheNamesOfEachVendorsExporter(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/vendors.hcl", "")
	r.until("all is healthy", allHealthy)
	registry := prometheus.NewRegistry()
	if err := registry.Register(telemetry.NewCollector(r.service.monitor, "host", true)); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, f := range families {
		for _, m := range f.Metric {
			model := ""
			for _, l := range m.Label {
				if l.GetName() == "modelName" {
					model, _, _ = strings.Cut(l.GetValue(), " ")
				}
			}
			if want, named := map[string]string{"DCGM": "NVIDIA", "gpu_": "AMD", "xpum": "Intel", "npu_": "Huawei"}[f.GetName()[:4]]; named && model != want {
				t.Errorf("%s is told of %s", f.GetName(), model)
			}
			seen[f.GetName()+" "+model] = true
		}
	}
	for _, want := range []string{"DCGM_FI_DEV_GPU_TEMP NVIDIA", "gpu_junction_temperature AMD", "gpu_used_vram AMD", "nomad_gpu_healthy NVIDIA", "nomad_gpu_healthy AMD", "nomad_gpu_healthy Intel", "xpum_temperature_celsius Intel",
		"npu_chip_info_hbm_used_memory Huawei", "nomad_gpu_healthy Huawei"} {
		if !seen[want] {
			t.Errorf("there is no %s", want)
		}
	}
}
