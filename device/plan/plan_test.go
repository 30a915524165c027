// SPDX-License-Identifier: MPL-2.0

package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

const sliced = "mode = \"slice\"\n"

func groupsOf(units []*Unit) string {
	var names []string
	for _, g := range Groups(MachineTraits{}, units) {
		names = append(names, g.Type+"/"+g.Name)
	}
	return strings.Join(names, " ")
}

func TestGroupNames(t *testing.T) {
	m := testMachine(2)
	m.GPUs[1].Partitioned = true
	m.GPUs[1].Partitions = []hardware.Partition{
		{UUID: "MIG-1", Profile: "3g.40gb", Name: "NVIDIA H100 80GB HBM3 MIG 3g.40gb", MemoryMiB: 40448},
		{UUID: "MIG-2", Profile: "1g.10gb", Name: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", MemoryMiB: 9984},
	}
	for _, tc := range []struct{ config, want string }{
		{"", "gpu/NVIDIA H100 80GB HBM3 mig/1g.10gb mig/3g.40gb"},
		{`mig_names = "hashicorp"`, "gpu/NVIDIA H100 80GB HBM3 gpu/NVIDIA H100 80GB HBM3 MIG 1g.10gb gpu/NVIDIA H100 80GB HBM3 MIG 3g.40gb"},
		{"gpu {\n index = 0\n mode = \"slice\"\n}\ngpu {\n mode = \"mig\"\n mig {\n profile = \"3g.*\"\n mode = \"slice\"\n }\n}",
			"mig-slice/3g.40gb/0 mig/1g.10gb slice/H100/0"},
		{"gpu {\n index = 0\n mode = \"shared\"\n}\ngpu {\n mode = \"mig\"\n mig {\n mode = \"shared\"\n }\n}",
			"shared/1g.10gb/1 shared/3g.40gb/0 shared/H100/0"},
	} {
		if got := groupsOf(Units(testConfig(t, tc.config), testRegistry(), m, quiet())); got != tc.want {
			t.Errorf("%s\n got %s\nwant %s", tc.config, got, tc.want)
		}
	}
}

func TestSliceCounts(t *testing.T) {
	for _, tc := range []struct {
		mib    int64
		config string
		want   int
	}{
		{81559, sliced, 79},
		{81920, sliced, 79},
		{15360, sliced, 14},
		{15360, sliced + `slice_memory = "512MiB"`, 29},
		{400, sliced, 0},
		{81559, "mode = \"shared\"\nreplicas = 6", 6},
	} {
		m := testMachine(1)
		m.GPUs[0].MemoryMiB = tc.mib
		if u := Units(testConfig(t, tc.config), testRegistry(), m, quiet())[0]; u.Slices != tc.want || len(u.IDs()) != tc.want {
			t.Errorf("%d MiB, %s: %d slices, want %d", tc.mib, tc.config, u.Slices, tc.want)
		}
	}
}

// Nomad forgets held instances when a group is renamed: the names must follow the
// GPUs, not the enumeration.
func TestNamesFollowTheGPU(t *testing.T) {
	c, l := testConfig(t, sliced), testRegistry()
	before := map[string]string{}
	for _, u := range Units(c, l, testMachine(3), quiet()) {
		before[u.UUID] = u.Group.String()
	}
	renumbered := testMachine(3)
	renumbered.GPUs[0], renumbered.GPUs[2] = renumbered.GPUs[2], renumbered.GPUs[0]
	for i := range renumbered.GPUs {
		renumbered.GPUs[i].Index = i
		renumbered.GPUs[i].PCIBusID = testGPU("", i).PCIBusID
	}
	for _, u := range Units(c, l, renumbered, quiet()) {
		if u.Group.String() != before[u.UUID] {
			t.Errorf("%s was %s and is %s", u.UUID, before[u.UUID], u.Group)
		}
	}
}

func TestMissingGPUStaysKnown(t *testing.T) {
	c, l := testConfig(t, sliced), testRegistry()
	m := testMachine(2)
	Units(c, l, m, quiet())
	now := quiet()
	now.Faults[testUUID(0)] = []gpu.Fault{{Code: "gpu-missing", Message: "it is not there"}}
	units := Units(c, l, hardware.Machine{GPUs: m.GPUs[1:]}, now)
	if len(units) != 2 || units[0].Group.String() != "nvidia/slice/H100/0" || units[0].Healthy() != 0 || units[1].Healthy() != 79 {
		t.Errorf("units are %+v", units)
	}
	// One that replaces it gets an index of its own.
	m.GPUs[0].UUID = testUUID(7)
	units = Units(c, l, m, now)
	if len(units) != 3 || units[2].Group.String() != "nvidia/slice/H100/2" {
		t.Errorf("after the replacement: %s", groupsOf(units))
	}
}

func TestModeChangesOnlyWhenEmpty(t *testing.T) {
	l := testRegistry()
	Units(testConfig(t, ""), l, testMachine(1), quiet())
	busy := quiet()
	busy.Holders[testUUID(0)] = occupancy.Holder{All: true}
	busy.Recent = busy.Holders
	u := Units(testConfig(t, sliced), l, testMachine(1), busy)[0]
	if u.Sharing.Mode != gpu.ModeWhole || !strings.Contains(u.Cordon, "to change from whole to slices of 1G with mps") {
		t.Errorf("with a task: %s, cordon %q", u.Sharing, u.Cordon)
	}
	if text := u.trouble(0).String(); text != "" {
		t.Errorf("an instance in use is unhealthy: %s", text)
	}
	busy = quiet()
	busy.Busy[testUUID(0)] = "process 4711 (python3) to end"
	u = Units(testConfig(t, sliced), l, testMachine(1), busy)[0]
	if u.Sharing.Mode != gpu.ModeWhole || u.trouble(0) == (gpu.Health{}) || !strings.HasPrefix(u.Cordon, "waits for process 4711 (python3) to end, to change from whole") {
		t.Errorf("with a process: %s, cordon %q", u.Sharing, u.Cordon)
	}
	u = Units(testConfig(t, sliced), l, testMachine(1), quiet())[0]
	if u.Sharing.Mode != gpu.ModeSlice || u.Cordon != "" {
		t.Errorf("empty: %s, cordon %q", u.Sharing, u.Cordon)
	}
}

// Nomad may restart a task in place, so its GPU keeps its mode for a while; the
// slices take no other task meanwhile.
func TestModeStaysAfterTheTaskEndedAndTakesNoNewWork(t *testing.T) {
	l := testRegistry()
	Units(testConfig(t, ""), l, testMachine(1), quiet())
	now := quiet()
	now.Recent[testUUID(0)] = occupancy.Holder{All: true}
	u := Units(testConfig(t, sliced), l, testMachine(1), now)[0]
	if u.Sharing.Mode != gpu.ModeWhole || u.trouble(0) == (gpu.Health{}) || !strings.HasPrefix(u.Cordon, "waits for its tasks to end, to change from whole") {
		t.Errorf("%s, trouble %q", u.Sharing, u.trouble(0))
	}
}

func TestBurstChangesAtOnce(t *testing.T) {
	l := testRegistry()
	Units(testConfig(t, sliced), l, testMachine(1), quiet())
	busy := quiet()
	busy.Holders[testUUID(0)] = occupancy.Holder{Slices: map[int]bool{0: true}}
	u := Units(testConfig(t, sliced+"compute_burst = 300"), l, testMachine(1), busy)[0]
	if u.Sharing.BurstMilli != 300 || u.Cordon != "" {
		t.Errorf("got %+v, cordon %q", u.Sharing, u.Cordon)
	}
}

func TestCordonSparesWhatIsHeld(t *testing.T) {
	now := quiet()
	now.Cordons[testUUID(0)] = "fan replacement"
	now.Holders[testUUID(0)] = occupancy.Holder{Slices: map[int]bool{2: true}}
	u := Units(testConfig(t, sliced), testRegistry(), testMachine(1), now)[0]
	if u.trouble(2) != (gpu.Health{}) || u.trouble(3).String() != "cordoned: fan replacement" || u.Healthy() != 1 {
		t.Errorf("slice 2: %q, slice 3: %q", u.trouble(2), u.trouble(3))
	}
	if s := u.State(); !s.Cordoned || len(s.Faults) != 0 || s.Group != u.Group.String() {
		t.Errorf("state is %+v", s)
	}
}

func TestFaultOfTheParentIsOneOfItsParts(t *testing.T) {
	m := testMachine(1)
	m.GPUs[0].Partitioned = true
	m.GPUs[0].Partitions = []hardware.Partition{{UUID: "MIG-1", Profile: "1g.10gb", MemoryMiB: 9984}}
	now := quiet()
	now.Faults[testUUID(0)] = []gpu.Fault{{Code: "xid-48", Message: "m", Action: "a"}}
	units := Units(testConfig(t, ""), testRegistry(), m, now)
	if len(units) != 2 || !strings.HasPrefix(units[1].trouble(0).String(), "xid-48: m (since ") {
		t.Errorf("units are %+v", units)
	}
	if s := units[0].State(); s.Group != "" {
		t.Errorf("a GPU in parts is offered as %s", s.Group)
	}
	if s := units[1].State(); s.ParentUUID != testUUID(0) || s.Profile != "1g.10gb" || len(s.Faults) != 1 {
		t.Errorf("state is %+v", s)
	}
}

func TestIgnoredDevicesAreNotOffered(t *testing.T) {
	m := testMachine(2)
	c := testConfig(t, `ignored_gpu_ids = ["`+testUUID(0)+`"]`)
	if units := Units(c, testRegistry(), m, quiet()); len(units) != 1 || units[0].UUID != testUUID(1) {
		t.Errorf("units are %+v", units)
	}
}

func TestMoreInstancesThanClientsAreNamed(t *testing.T) {
	m := testMachine(1)
	for config, want := range map[string]bool{
		"mode = \"slice\"\nmps { max_clients = 4 }":                     true,
		"mode = \"slice\"\nmps { max_clients = 60 }":                    false,
		"mode = \"slice\"\nsharing = \"none\"\nmps { max_clients = 4 }": false,
		"mode = \"whole\"\nmps { max_clients = 4 }":                     false,
	} {
		c := testConfig(t, config)
		units := Units(c, testRegistry(), m, quiet())
		got := strings.Join(Crowded(c, units, m), "; ")
		if strings.Contains(got, "and an MPS server takes 4 CUDA contexts") != want {
			t.Errorf("%s: warnings are %q", config, got)
		}
	}
}

// A number that is more than the GPU's server takes is not the operator's to choose.
func TestMoreClientsThanTheServerTakesAreNamed(t *testing.T) {
	for config, want := range map[string]bool{
		"mode = \"slice\"\nmps { max_clients = 48 }":                     false,
		"mode = \"slice\"\nmps { max_clients = 49 }":                     true,
		"mode = \"slice\"\nsharing = \"none\"\nmps { max_clients = 49 }": false,
	} {
		m := testMachine(1)
		driver := m.Drivers[m.GPUs[0].Vendor]
		driver.Platform = "13.0"
		m.Drivers[m.GPUs[0].Vendor] = driver
		c := testConfig(t, config)
		warnings := strings.Join(Crowded(c, Units(c, testRegistry(), m, quiet()), m), "; ")
		if strings.Contains(warnings, ": mps.max_clients 49: the MPS server takes 48") != want {
			t.Errorf("%s: warnings are %q", config, warnings)
		}
	}
}

func TestUnmatchedRulesAreNamed(t *testing.T) {
	l := testRegistry()
	m := testMachine(2)
	m.GPUs[1].Partitions = []hardware.Partition{{UUID: "MIG-1", Profile: "1g.10gb", MemoryMiB: 9984}}
	c := testConfig(t, "ignored_gpu_ids = [\"GPU-9\", \"MIG-1\"]\ngpu { model = \"H100\" }\ngpu { index = 0 }\ngpu { model = \"T4\" }")
	Units(c, l, m, quiet())
	// A GPU that could not be read from the start is not judged, nor are the rules: one may
	// be for it.
	silent := testGPU("GPU-silent", 7)
	silent.Model, silent.MemoryMiB = "", 0
	both := hardware.Machine{GPUs: append(slices.Clone(m.GPUs), silent)}
	Units(c, l, both, quiet())
	if got := Unmatched(c, both.GPUs, l); got != nil {
		t.Errorf("beside a GPU that has not told what it is there are warnings: %q", got)
	}
	got := strings.Join(Unmatched(c, m.GPUs, l), "; ")
	if !strings.Contains(got, "gpu[1]") || !strings.Contains(got, "gpu[2]") || strings.Contains(got, "gpu[0]") || !strings.Contains(got, `"GPU-9"`) || strings.Contains(got, "MIG-1") {
		t.Errorf("warnings are %s", got)
	}
}

// A rule that selects nothing names the models of the machine, a GPU that offers nothing is named, and
// equal warnings are one.
func TestWarningsNameWhatIsThere(t *testing.T) {
	m := testMachine(5)
	for config, want := range map[string][]string{
		"gpu { model = \"b200\" }": {`gpu[0] selects no GPU: none of this machine has model "b200"; there are ` + m.GPUs[0].Model},
		"gpu { model = \"" + strings.ToLower(gpu.ShortModel(m.GPUs[0].Model)) + "\" }": nil,
		"gpu {}\ngpu { index = 1 }":                   {"gpu[1] selects no GPU that an earlier rule does not select"},
		"mode = \"slice\"\nslice_memory = \"500GiB\"": {"and 2 more: offered to nobody: slice_memory 500G with headroom 512M is more than its memory"},
		"mode = \"slice\"\nheadroom = \"500GiB\"":     {"and 2 more: offered to nobody: slice_memory 1G with headroom 500G"},
		"mode = \"mig\"":                              {`and 2 more: offered to nobody: mode "mig", and it has no instances`},
		"mode = \"slice\"\nmps { max_clients = 4 }":   {"and 2 more: "},
		"replicas = 2":                                {`replicas has no effect without mode "shared"`},
	} {
		c, l := testConfig(t, config), testRegistry()
		units := Units(c, l, m, quiet())
		got := Warnings(c, units, m, l)
		if len(got) != len(want) || len(want) == 1 && !strings.Contains(got[0], want[0]) {
			t.Errorf("%s: warnings are %q", config, got)
		}
	}
}

// Before Volta the programs of an MPS server share one address space and have no limits.
func TestSlicesUnderMPSTakeVolta(t *testing.T) {
	for capability, refused := range map[string]bool{"6.1": true, "6.0": true, "7.0": false, "9.0": false, "12.1": false, "": false} {
		for _, sharing := range []string{"", "sharing = \"timeslice\"\n"} {
			m := testMachine(1)
			m.GPUs[0].ComputeCapability = capability
			why := Units(testConfig(t, sliced+sharing), testRegistry(), m, quiet())[0].Unable()
			if want := refused && sharing == ""; strings.Contains(why, "from compute capability 7.0 (Volta) on, and this GPU has "+capability) != want || !want && why != "" {
				t.Errorf("%q, %q: %q", capability, sharing, why)
			}
		}
	}
}

func TestSlicesInWhichNoProgramStartsAreNamed(t *testing.T) {
	for config, want := range map[string]bool{
		sliced + `slice_memory = "512MiB"`:                         true,
		sliced + `slice_memory = "576MiB"`:                         false,
		sliced + "sharing = \"none\"\nslice_memory = \"512MiB\"\n": false,
	} {
		m := testMachine(1)
		c := testConfig(t, config)
		warnings := strings.Join(Crowded(c, Units(c, testRegistry(), m, quiet()), m), "; ")
		if strings.Contains(warnings, "slice_memory: 512 MiB are too little for a CUDA program") != want {
			t.Errorf("%s: warnings are %q", config, warnings)
		}
	}
}
