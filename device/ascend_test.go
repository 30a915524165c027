// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

const ascendTopology = "../e2e/topology/ascend.hcl"

func TestAscendDevicesAndVNPUsAreOffered(t *testing.T) {
	r, m := newRig(t), cardsOf(t, ascendTopology)
	r.start(ascendTopology, "")
	groups := r.until("all is healthy", allHealthy)
	want := map[string][2]int{
		"huawei/npu/Huawei Ascend 910B3": {2, 2},
		"huawei/npu/Huawei Ascend 310P3": {1, 1},
		"huawei/vnpu/vir10_3c_32g":       {1, 1},
		"huawei/vnpu/vir05_1c_16g":       {2, 2},
	}
	if got := groupSizes(groups); !maps.Equal(got, want) {
		t.Fatalf("groups are %v", got)
	}
	whole, _ := find(groups, "npu/Huawei Ascend 910B3")
	for key, want := range map[string]string{gpu.AttrModel: "Huawei Ascend 910B3", gpu.AttrType: "910B3", gpu.AttrMemory: "65536 MiB", gpu.AttrAICores: "20",
		gpu.AttrNUMANode: "0", gpu.AttrGrade: "hardware", gpu.AttrDriverVersion: "24.1.rc3", "cores_clock": "1800 MHz", "memory_clock": "1600 MHz"} {
		if got := plan.AttributeText(whole.Attributes[key]); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	if closeness := plan.AttributeText(whole.Attributes[gpu.AttrCloseness]); !strings.Contains(closeness, "hccs:1=") {
		t.Errorf("closeness is %s", closeness)
	}
	part, _ := find(groups, "vnpu/vir10_3c_32g")
	if got := plan.AttributeText(part.Attributes[gpu.AttrMemory]); got != "30720 MiB" || part.Devices[0].ID != m.PartitionUUID(2, 0) {
		t.Errorf("a vNPU %s has %s", part.Devices[0].ID, got)
	}
}

// Any driver gets the names by which CANN and Huawei's container runtime know the devices.
func TestAscendReservationsNameWhatCANNKnows(t *testing.T) {
	r, m := newRig(t), cardsOf(t, ascendTopology)
	r.start(ascendTopology, "")
	r.until("all is healthy", allHealthy)
	for _, tc := range []struct {
		ids  []string
		want map[string]string
	}{
		{[]string{m.CardUUID(1)}, map[string]string{gpu.EnvAscendRTVisible: "1", gpu.EnvAscendVisible: "1"}},
		{[]string{m.CardUUID(0), m.CardUUID(1)}, map[string]string{gpu.EnvAscendRTVisible: "0,1", gpu.EnvAscendVisible: "0,1"}},
		{[]string{m.PartitionUUID(2, 1)}, map[string]string{gpu.EnvAscendVisible: "133", gpu.EnvAscendOptions: "VIRTUAL"}},
	} {
		given, err := r.Reserve(tc.ids)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{gpu.EnvAscendRTVisible, gpu.EnvAscendVisible, gpu.EnvAscendOptions, gpu.EnvNVIDIAVisible, gpu.EnvROCRVisible} {
			if given.Envs[key] != tc.want[key] {
				t.Errorf("%v: %s is %q, want %q", tc.ids, key, given.Envs[key], tc.want[key])
			}
		}
	}
}

func TestAscendFaultsHideOnlyWhatTheyConcern(t *testing.T) {
	hideOnlyWhatTheyConcern(t, ascendTopology, "huawei", map[string]faultRow{
		"a critical fault":  {0, func(c *sim.Condition) { c.Health, c.Faults = 3, []string{"80E01801"} }, "npu/Huawei Ascend 910B3", 1, "npu-80e01801", ""},
		"a major fault":     {3, func(c *sim.Condition) { c.Health = 2 }, "npu/Huawei Ascend 310P3", 0, "npu-health", ""},
		"of all vNPUs":      {2, func(c *sim.Condition) { c.Health, c.Faults = 3, []string{"80E18402"} }, "vnpu/vir05_1c_16g", 0, "npu-80e18402", "vnpu"},
		"a lost vNPU":       {2, func(c *sim.Condition) { c.LostPartitions = []int{134} }, "vnpu/vir05_1c_16g", 1, "vnpu-lost", "vnpu"},
		"unplugged":         {1, func(c *sim.Condition) { c.Missing = true }, "npu/Huawei Ascend 910B3", 1, "gpu-missing", ""},
		"out of reach":      {1, func(c *sim.Condition) { c.Lost = true }, "npu/Huawei Ascend 910B3", 1, "gpu-lost", ""},
		"not started":       {1, func(c *sim.Condition) { c.Health = 0xffffffff }, "npu/Huawei Ascend 910B3", 1, "npu-not-started", ""},
		"an error":          {0, func(c *sim.Condition) { c.Errors = map[string]int{"dcmi_get_device_health": -8009} }, "npu/Huawei Ascend 910B3", 1, "dcmi-error", ""},
		"an unknown answer": {0, func(c *sim.Condition) { c.Errors = map[string]int{"dcmi_get_device_chip_info": -1} }, "npu/Huawei Ascend 910B3", 1, "dcmi-error", ""},
		"a call that hangs": {0, func(c *sim.Condition) { c.Hang = []string{"dcmi_get_device_hbm_info"} }, "npu/Huawei Ascend 910B3", 1, "dcmi-timeout", ""},
	})
}

// The driver tells of faults, so that they are known long before the next survey is due. One
// that did not last stands until the device is found well.
func TestAscendFaultsAreHeard(t *testing.T) {
	r, m := newRig(t), cardsOf(t, ascendTopology)
	r.interval = "10m"
	r.start(ascendTopology, `fingerprint_period = "10m"`)
	r.until("all is healthy", allHealthy)
	codes := func(want string) {
		t.Helper()
		eventually(t, "it says "+want, func() bool {
			state, err := r.openState().GPU(m.CardUUID(0))
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Fields(faultCodes(state.Faults))
			slices.Sort(all)
			return strings.Join(all, " ") == want
		})
	}
	r.happen(m.CardUUID(0), func(c *sim.Condition) {
		c.Health, c.Faults, c.PassedFaults = 3, []string{"80E01801"}, []string{"81078603:2"}
	})
	codes("event-npu-81078603 npu-80e01801")
	r.happen(m.CardUUID(0), func(c *sim.Condition) { c.Health, c.Faults = 0, nil })
	r.until("it is well again", allHealthy)
}

// What Huawei calls minor leaves a device healthy.
func TestMinorFaultsOfAscendDevicesAreNone(t *testing.T) {
	r, m := newRig(t), cardsOf(t, ascendTopology)
	r.start(ascendTopology, "")
	r.until("all is healthy", allHealthy)
	r.happen(m.CardUUID(0), func(c *sim.Condition) { c.Health, c.Faults = 1, []string{"80C98006"} })
	r.happen(m.CardUUID(1), func(c *sim.Condition) { c.Health = 2 })
	groups := r.until("the other is ill", func(g []*device.DeviceGroup) bool { _, n := find(g, "npu/Huawei Ascend 910B3"); return n == 1 })
	g, _ := find(groups, "npu/Huawei Ascend 910B3")
	for _, d := range g.Devices {
		if d.ID == m.CardUUID(0) && !d.Healthy {
			t.Errorf("it is said that %q", d.HealthDesc)
		}
	}
}

// A driver that is reloaded takes every device of the vendor away for a while.
func TestAscendDriverReload(t *testing.T) {
	r := newRig(t)
	r.start(ascendTopology, "")
	before := groupSizes(r.until("all is healthy", allHealthy))
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{NoDriver: []string{"huawei"}}); err != nil {
		t.Fatal(err)
	}
	groups := r.until("all are ill", func(g []*device.DeviceGroup) bool {
		return !slices.ContainsFunc(slices.Collect(maps.Values(groupSizes(g))), func(size [2]int) bool { return size[1] > 0 })
	})
	for group, size := range groupSizes(groups) {
		if size[0] != before[group][0] {
			t.Errorf("%s: %v, before %v", group, size, before[group])
		}
	}
	if !strings.HasPrefix(groups[0].Devices[0].HealthDesc, "dcmi-absent: ") {
		t.Errorf("it is said that %q", groups[0].Devices[0].HealthDesc)
	}
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{Drivers: map[string]string{"huawei": "25.0.rc1"}}); err != nil {
		t.Fatal(err)
	}
	groups = r.until("all is healthy again", allHealthy)
	if version := plan.AttributeText(groups[0].Attributes[gpu.AttrDriverVersion]); version != "25.0.rc1" {
		t.Errorf("the driver is %s", version)
	}
}

// Memory of Ascend devices is divided by vNPUs alone: slices are refused, with what to
// write.
func TestAscendSlicesAreRefused(t *testing.T) {
	r, m := newRig(t), cardsOf(t, ascendTopology)
	r.start(ascendTopology, "gpu {\n model = \"310P3\"\n mode = \"slice\"\n}\ngpu {\n uuid = \""+m0(t)+"\"\n mode = \"shared\"\n replicas = 3\n}")
	groups := r.until("the replicas are healthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "shared/910B3/0"); return n == 3 })
	if g, _ := find(groups, "shared/910B3/0"); plan.AttributeText(g.Attributes[gpu.AttrGrade]) != "none" || plan.AttributeText(g.Attributes[gpu.AttrSharing]) != "timeslice" {
		t.Errorf("replicas are kept apart by %s, grade %s", plan.AttributeText(g.Attributes[gpu.AttrSharing]), plan.AttributeText(g.Attributes[gpu.AttrGrade]))
	}
	g, healthy := find(groups, "slice/310P3/3")
	if g == nil || healthy != 0 || !strings.HasPrefix(g.Devices[0].HealthDesc, "sharing-impossible: mode \"slice\"") || !strings.Contains(g.Devices[0].HealthDesc, "vNPUs") {
		t.Errorf("slices are %s", describeGroups(groups))
	}
	if state, err := r.openState().GPU(m.CardUUID(3)); err != nil || faultCodes(state.Faults) != "sharing-impossible" {
		t.Errorf("faults are %v, %v", state.Faults, err)
	}
}

func m0(t *testing.T) string { return cardsOf(t, ascendTopology).CardUUID(0) }

// vNPUs that the configuration declares are made; those that are there already stay.
func TestVNPUsAreMade(t *testing.T) {
	r, m := newRig(t), cardsOf(t, ascendTopology)
	config := "gpu {\n uuid = \"" + m.CardUUID(2) + "\"\n mode = \"partition\"\n profiles = [%s]\n}\n"
	r.start(ascendTopology, strings.Replace(config, "%s", `"vir05_1c_16g", "vir05_1c_16g", "vir05_1c_16g"`, 1))
	groups := r.until("it has three alike", func(g []*device.DeviceGroup) bool { _, n := find(g, "vnpu/vir05_1c_16g"); return n == 3 })
	g, _ := find(groups, "vnpu/vir05_1c_16g")
	for n := 1; n <= 2; n++ {
		if !slices.ContainsFunc(g.Devices, func(d *device.Device) bool { return d.ID == m.PartitionUUID(2, n) }) {
			t.Errorf("%s was there, and is not any more", m.PartitionUUID(2, n))
		}
	}
	for id, there := range map[string]bool{"132": false, "133": true, "134": true, "135": true} {
		if _, err := os.Stat(filepath.Join(r.dir, "sim/nodes/vdavinci"+id)); (err == nil) != there {
			t.Errorf("the node of vNPU %s: %v", id, err)
		}
	}
	r.start(ascendTopology, strings.Replace(config, "%s", `"vir10_3c_32g", "vir10_3c_32g", "vir05_1c_16g"`, 1))
	eventually(t, "it says that they do not fit", func() bool {
		state, err := r.openState().GPU(m.CardUUID(2))
		return err == nil && strings.Contains(fmt.Sprint(state.Faults), "the templates have 25 AI cores together, the device has 20")
	})
	r.until("what was there is offered", func(g []*device.DeviceGroup) bool { _, n := find(g, "vnpu/vir05_1c_16g"); return n == 3 })
}

func TestAscendStatistics(t *testing.T) {
	r, m := newRig(t), cardsOf(t, ascendTopology)
	r.start(ascendTopology, "")
	r.until("all is healthy", allHealthy)
	part := m.PartitionUUID(2, 0)
	r.happen(m.CardUUID(0), func(c *sim.Condition) {
		c.GPUPercent, c.MemoryPercent, c.TemperatureC, c.PowerWatts, c.ECCUncorrected = 80, 31, 66, 300, 2
		c.Processes = []sim.Process{{PID: 4711, MemoryMiB: 4096}}
	})
	r.happen(m.CardUUID(2), func(c *sim.Condition) {
		c.Processes = []sim.Process{{PID: 77, MemoryMiB: 1000, Percent: 55, Instance: part}}
	})
	see := r.service.reconciler.platform.Observer
	reading, err := see.Reading(m.CardUUID(0), m.CardUUID(0))
	if err != nil || reading.GPUPercent != 80 || reading.MemoryPercent != 31 || reading.TemperatureC != 66 || reading.MemoryTemperatureC != 69 || reading.PowerWatts != 300 ||
		reading.MemoryUsedMiB != 7096 || reading.MemoryTotalMiB != 65536 || reading.ECCMemory != 2 || reading.SMClockMHz != 900 || reading.PowerLimitWatts != -1 || reading.EncoderPercent != -1 {
		t.Errorf("the device reads %+v, %v", reading, err)
	}
	processes, err := see.Processes(m.CardUUID(0), m.CardUUID(0))
	if err != nil || len(processes) != 1 || processes[0].PID != 4711 || processes[0].MemoryMiB != 4096 || processes[0].Milli != -1 {
		t.Errorf("processes are %+v, %v", processes, err)
	}
	reading, err = see.Reading(m.CardUUID(2), part)
	if err != nil || reading.GPUPercent != 55 || reading.MemoryTotalMiB != 30720 || reading.MemoryUsedMiB != 1000 || reading.TemperatureC != -1 || reading.PowerWatts != -1 {
		t.Errorf("the vNPU reads %+v, %v", reading, err)
	}
	// What a device without HBM does not tell is absent, never zero.
	reading, err = see.Reading(m.CardUUID(3), m.CardUUID(3))
	if err != nil || reading.PowerWatts != -1 || reading.MemoryPercent != -1 || reading.ECCMemory != -1 || reading.MemoryTemperatureC != -1 || reading.MemoryTotalMiB != 21527 || reading.TemperatureC != 42 {
		t.Errorf("the inference card reads %+v, %v", reading, err)
	}
}

// A container gets the node of its own device or vNPU, those of the managers, and the
// driver's files for reading.
func TestAscendCDI(t *testing.T) {
	r, m := newRig(t), cardsOf(t, ascendTopology)
	r.start(ascendTopology, "")
	r.until("all is healthy", allHealthy)
	source := r.service.reconciler.platform.CDI["huawei"]
	spec, failed, err := source.CDISpec("nomad-gpu/huawei", []string{m.CardUUID(1), m.PartitionUUID(2, 2), "NPU-gone"})
	if err != nil || len(failed) != 1 || len(spec.Devices) != 2 {
		t.Fatalf("%+v, %v, %v", spec, failed, err)
	}
	nodes := func(e specs.ContainerEdits) string {
		var all []string
		for _, n := range e.DeviceNodes {
			all = append(all, filepath.Base(n.HostPath)+" as "+n.Path)
		}
		return strings.Join(all, ", ")
	}
	if got := nodes(spec.ContainerEdits); got != "davinci_manager as /dev/davinci_manager, devmm_svm as /dev/devmm_svm, hisi_hdc as /dev/hisi_hdc" {
		t.Errorf("all get %s", got)
	}
	if got := nodes(spec.Devices[0].ContainerEdits); got != "davinci1 as /dev/davinci1" {
		t.Errorf("a device is %s", got)
	}
	if got := nodes(spec.Devices[1].ContainerEdits); got != "vdavinci134 as /dev/davinci134" {
		t.Errorf("a vNPU is %s", got)
	}
	var mounts []string
	for _, mount := range spec.ContainerEdits.Mounts {
		if mounts = append(mounts, mount.ContainerPath); !slices.Contains(mount.Options, "ro") {
			t.Errorf("%s can be written", mount.ContainerPath)
		}
	}
	if got := strings.Join(mounts, " "); got != "/usr/local/Ascend/driver/lib64 /usr/local/Ascend/driver/version.info /usr/local/dcmi /etc/ascend_install.info" {
		t.Errorf("mounts are %s", got)
	}
	if err := source.CheckCDI(spec, []string{m.CardUUID(1), m.PartitionUUID(2, 2)}); err != nil {
		t.Error(err)
	}
	if got := source.Stands(spec.Devices[0]) + " " + source.Stands(spec.Devices[1]); got != m.CardUUID(1)+" "+m.PartitionUUID(2, 2) {
		t.Errorf("the devices stand for %s", got)
	}
}
