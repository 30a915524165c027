// SPDX-License-Identifier: MPL-2.0

package ascend_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/ascend"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/device/sim/dcmi"
	"github.com/nomad-gpu/nomad-gpu/device/sim/sysfstest"
	"github.com/nomad-gpu/nomad-gpu/device/sysfs"
)

const machine = "gpu {\n model = \"910B3\"\n count = 2\n}\ngpu {\n model = \"910B3\"\n mode = \"vir10_3c_32g,vir05_1c_16g\"\n}"

func backend(k *sim.Kernel) *ascend.Backend {
	return ascend.New(sysfs.Options{Root: k.Root(), Timeout: time.Minute, Refresh: k.Refresh})
}

// calls are those that a device is asked.
var calls = []string{"dcmi_get_device_type", "dcmi_get_device_chip_info", "dcmi_get_device_pcie_info_v2", "dcmi_get_device_logic_id", "dcmi_get_device_hbm_info",
	"dcmi_get_device_die_v2", "dcmi_get_device_frequency", "dcmi_get_device_health", "dcmi_get_device_errorcode_v2", "dcmi_get_device_errorcode_string",
	"dcmi_get_device_info", "dcmi_get_device_utilization_rate", "dcmi_get_device_temperature", "dcmi_get_device_power_info", "dcmi_get_device_ecc_info",
	"dcmi_get_device_resource_info", "dcmi_get_topo_info_by_device_id", "dcmi_subscribe_fault_event"}

// Whatever a device answers, nothing fails or waits, and the other devices are
// what they were.
func TestSpoiledAnswersHideOnlyWhatTheyConcern(t *testing.T) {
	k, topology := sysfstest.Kernel(t, machine)
	b := backend(k)
	whole, err := b.Survey()
	if err != nil || len(whole.GPUs) != 3 {
		t.Fatalf("%d devices, %v", len(whole.GPUs), err)
	}
	dir := filepath.Dir(k.Root())
	sysfstest.EachTree(func(number uint64, r *rand.Rand) {
		victim := r.IntN(3)
		failing := map[string]int{}
		for range 1 + r.IntN(4) {
			failing[calls[r.IntN(len(calls))]] = []int{-8001, -8005, -8008, -8009, -8012, -8255, -1, 1 << 20}[r.IntN(8)]
		}
		err := sim.Update(dir, topology.CardUUID(victim), func(c *sim.Condition) {
			*c = sim.Condition{Errors: failing, Lost: r.IntN(20) == 0, Missing: r.IntN(20) == 0, Health: uint32(r.IntN(5)), Faults: []string{"80E01801", "", "zz"}[:r.IntN(4)],
				GPUPercent: r.Uint32(), TemperatureC: r.Uint32N(1000), ECCUncorrected: r.Uint64(), LostPartitions: []int{132}[:r.IntN(2)]}
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := sim.WriteControl(dir, sim.Control{}); err != nil {
				t.Fatal(err)
			}
		}()
		sysfstest.OnlyItself(t, number, b, whole, victim)
	})
}

// A call that hangs costs its own device alone, and keeps a new card from being
// found only until it comes back.
func TestACallThatHangsCostsItsOwnDevice(t *testing.T) {
	k, topology := sysfstest.Kernel(t, machine)
	dir := filepath.Dir(k.Root())
	b := ascend.New(sysfs.Options{Root: k.Root(), Timeout: 2 * time.Second, Refresh: k.Refresh})
	if _, err := b.Survey(); err != nil {
		t.Fatal(err)
	}
	happen := func(card int, change func(*sim.Condition)) {
		t.Helper()
		if err := sim.Update(dir, topology.CardUUID(card), change); err != nil {
			t.Fatal(err)
		}
	}
	happen(0, func(c *sim.Condition) { c.Hang = []string{"*"} })
	if m, err := b.Survey(); err != nil || len(m.GPUs) != 3 {
		t.Fatalf("%d devices, %v", len(m.GPUs), err)
	}
	happen(1, func(c *sim.Condition) { c.Missing = true })
	m, err := b.Survey()
	if err != nil || len(m.GPUs) != 3 {
		t.Fatalf("%d devices, %v", len(m.GPUs), err)
	}
	for i, want := range []string{"dcmi-timeout", "gpu-lost", ""} {
		code := ""
		if len(m.GPUs[i].Problems) > 0 {
			code = m.GPUs[i].Problems[0].Code
		}
		if code != want || m.GPUs[i].UUID != topology.CardUUID(i) || !m.GPUs[i].Known() {
			t.Errorf("device %d is %s, %q", i, m.GPUs[i].UUID, code)
		}
	}
	happen(0, func(c *sim.Condition) { c.Hang = nil })
	for end := time.Now().Add(time.Minute); ; {
		m, err := b.Survey()
		if err == nil && len(m.GPUs) == 2 && len(m.GPUs[0].Problems) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("gave up: %+v, %v", m, err)
		}
	}
}

// Where one of the vNPUs that are wanted cannot be made, there are those that were before.
func TestALayoutThatFailsChangesNothing(t *testing.T) {
	k, topology := sysfstest.Kernel(t, machine)
	b := backend(k)
	profiles := func() (found []string) {
		t.Helper()
		m, err := b.Survey()
		if err != nil || len(m.GPUs) != 3 {
			t.Fatalf("%+v, %v", m, err)
		}
		for _, p := range m.GPUs[2].Partitions {
			found = append(found, p.Profile)
		}
		slices.Sort(found)
		return found
	}
	before := profiles()
	for _, wanted := range [][]string{{"vir10_3c_32g", "vir02_1c_4g"}, {"vir01_1c_2g"}, {"vir10_3c_32g", "vir10_3c_32g", "vir10_3c_32g"}} {
		if err := b.Layout(topology.CardUUID(2), wanted); err == nil {
			t.Errorf("%v was made", wanted)
		}
		if now := profiles(); !slices.Equal(now, before) {
			t.Errorf("after %v there is %v, before %v", wanted, now, before)
		}
	}
	if err := b.Layout(topology.CardUUID(2), []string{"vir10_3c_32g", "vir10_3c_32g"}); err != nil || len(profiles()) != 2 {
		t.Errorf("%v: %v", profiles(), err)
	}
}

// A library of before 2024 has fewer functions: what it does not tell is absent.
func TestOldLibrary(t *testing.T) {
	library, err := dcmi.Build(t.TempDir(), "-DOLD_DRIVER")
	if err != nil {
		t.Fatal(err)
	}
	topology, err := sim.ParseTopology("test.hcl", []byte("machine \"test\" {}\n"+machine))
	if err != nil {
		t.Fatal(err)
	}
	k, err := sim.NewKernel(topology, sim.Options{Dir: t.TempDir(), BootID: "boot", DCMI: library, Report: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	m, err := backend(k).Survey()
	if err != nil || len(m.GPUs) != 3 {
		t.Fatalf("%+v, %v", m, err)
	}
	for i, g := range m.GPUs {
		if g.PCIBusID != topology.CardPCI(i) || g.Links.Total() != 0 || len(g.Problems) != 0 || g.UUID != topology.CardUUID(i) {
			t.Errorf("device %d is %+v", i, g)
		}
	}
}

// A machine without the driver has no devices, and says so.
func TestNoLibraryIsNoDriver(t *testing.T) {
	b := ascend.New(sysfs.Options{Root: t.TempDir(), Timeout: time.Minute})
	_, err := b.Survey()
	if absent := b.Absence(err).Absent; err == nil || absent == nil || absent.Code != "dcmi-absent" {
		t.Errorf("%v, %+v", err, absent)
	}
	if want := "ask Huawei's driver for devices: the driver of Huawei's devices is not loaded, or its libdcmi.so not installed: libdcmi.so, of Huawei's driver, cannot be opened"; err.Error() != want {
		t.Errorf("got  %q\nwant %q", err, want)
	}
	garbage := t.TempDir()
	if err := os.MkdirAll(filepath.Join(garbage, "usr/local/dcmi"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(garbage, "usr/local/dcmi/libdcmi.so"), []byte("not a library"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ascend.New(sysfs.Options{Root: garbage, Timeout: time.Minute}).Survey(); err == nil || !strings.Contains(err.Error(), "usr/local/dcmi/libdcmi.so") {
		t.Errorf("garbage is a library, or is not named: %v", err)
	}
}

// A library that was replaced on disk is seen by a new process only.
func TestAnUpgradedLibraryAsksForANewProcess(t *testing.T) {
	k, _ := sysfstest.Kernel(t, machine)
	b := backend(k)
	if m, err := b.Survey(); err != nil || m.Drivers[ascend.Vendor].Outdated {
		t.Fatalf("%+v, %v", m.Drivers, err)
	}
	path := filepath.Join(filepath.Dir(k.Root()), "dcmi", "libdcmi.so")
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	next := path + ".next"
	if err := os.WriteFile(next, code, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(next, time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
	if m, err := b.Survey(); err != nil || !m.Drivers[ascend.Vendor].Outdated {
		t.Errorf("%+v, %v", m.Drivers, err)
	}
}

func BenchmarkSurveyOf16(b *testing.B) {
	k, _ := sysfstest.Kernel(b, fmt.Sprintf("gpu {\n model = %q\n count = 16\n}", "910B3"))
	backend := backend(k)
	b.ReportAllocs()
	for b.Loop() {
		if m, err := backend.Survey(); err != nil || len(m.GPUs) != 16 {
			b.Fatal(err)
		}
	}
}
