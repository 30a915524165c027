// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/internal/tmpfs"
)

func newMachine(t *testing.T, dir, boot string, report func(error)) *Machine {
	t.Helper()
	topology, err := ParseTopology("t.hcl", []byte("machine \"m\" {}\ngpu {\n model = \"H100\"\n mig = [\"1g.10gb\"]\n}\ngpu {\n model = \"T4\"\n}"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(topology, Options{Dir: dir, BootID: boot, Report: report})
	if err != nil {
		t.Fatal(err)
	}
	if ret := m.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return m
}

// Whoever asks while NVML starts hears that it has not, or gets the GPU.
func TestAnIndexIsThereOnceInitialized(t *testing.T) {
	for range 50 {
		m := newMachine(t, t.TempDir(), "boot", nil)
		m.indexed.Store(nil)
		m.initialized.Store(0)
		asked := make(chan nvml.Return)
		go func() {
			for {
				if _, ret := m.DeviceGetHandleByIndex(0); ret != nvml.ERROR_UNINITIALIZED {
					asked <- ret
					return
				}
			}
		}()
		if ret := m.Init(); ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		if ret := <-asked; ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
	}
}

// What software did to the hardware outlives the plugin, and not a reboot.
func TestSettingsOutliveThePluginOnly(t *testing.T) {
	dir := t.TempDir()
	m := newMachine(t, dir, "boot 1", nil)
	uuid := m.topology.UUID(0)
	if err := m.SetTimeslice(uuid, "long"); err != nil {
		t.Fatal(err)
	}
	if ret, _ := m.gpus[0].SetMigMode(nvml.DEVICE_MIG_DISABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	m = newMachine(t, dir, "boot 1", nil)
	if level, _ := m.Timeslice(uuid); level != "long" || len(m.gpus[0].migDevices()) != 0 {
		t.Errorf("after a restart: time slice %q, %d MIG instances", level, len(m.gpus[0].migDevices()))
	}
	m = newMachine(t, dir, "boot 2", nil)
	if level, _ := m.Timeslice(uuid); level != "default" || len(m.gpus[0].migDevices()) != 1 {
		t.Errorf("after a reboot: time slice %q, %d MIG instances", level, len(m.gpus[0].migDevices()))
	}
}

func TestBadControlFileLeavesTheLastGoodInForce(t *testing.T) {
	dir := t.TempDir()
	var problems []error
	m := newMachine(t, dir, "boot", func(err error) { problems = append(problems, err) })
	uuid := m.topology.UUID(1)
	if err := Update(dir, uuid, func(c *Condition) { c.TemperatureC = 80 }); err != nil {
		t.Fatal(err)
	}
	if degrees, _ := m.gpus[1].GetTemperature(nvml.TEMPERATURE_GPU); degrees != 80 {
		t.Errorf("temperature is %d", degrees)
	}
	for _, bad := range []string{"{", `{"gpu": {}}`, `{"gpus": {"` + uuid + `": {"temprature_c": 1}}}`} {
		if err := os.WriteFile(filepath.Join(dir, controlFile), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		problems = nil
		if degrees, _ := m.gpus[1].GetTemperature(nvml.TEMPERATURE_GPU); degrees != 80 || len(problems) != 1 || !strings.Contains(problems[0].Error(), controlFile) {
			t.Errorf("%s: temperature is %d, reported %v", bad, degrees, problems)
		}
	}
}

// Two changes can come in one tick of the file system's clock, and be of one length.
func TestEachChangeOfTheControlFileIsSeen(t *testing.T) {
	dir := tmpfs.Dir(t)
	c := watchedControl{dir: dir, report: func(err error) { t.Error(err) }}
	for _, driver := range []string{"570.1", "570.2", "570.3"} {
		if err := WriteControl(dir, Control{Driver: driver}); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, controlFile), time.Unix(1e9, 0), time.Unix(1e9, 0)); err != nil {
			t.Fatal(err)
		}
		if got := c.get().Driver; got != driver {
			t.Errorf("it is %s, and is read as %s", driver, got)
		}
	}
}

// Who goes through the indices must not skip a GPU because another went missing.
func TestAnIndexKeepsItsGPUUntilTheNextCount(t *testing.T) {
	dir := t.TempDir()
	m := newMachine(t, dir, "boot", nil)
	if count, _ := m.DeviceGetCount(); count != 2 {
		t.Fatalf("%d GPUs", count)
	}
	if err := Update(dir, m.topology.UUID(0), func(c *Condition) { c.Missing = true }); err != nil {
		t.Fatal(err)
	}
	if _, ret := m.DeviceGetHandleByIndex(0); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("the missing GPU: %v", ret)
	}
	for _, count := range []int{2, 1} {
		d, ret := m.DeviceGetHandleByIndex(count - 1)
		if ret != nvml.SUCCESS {
			t.Fatalf("of %d GPUs: %v", count, ret)
		}
		if uuid, _ := d.GetUUID(); uuid != m.topology.UUID(1) {
			t.Errorf("of %d GPUs: it is %s", count, uuid)
		}
		m.DeviceGetCount()
	}
}

func TestWhatIsNotModelledIsNotSupported(t *testing.T) {
	m := newMachine(t, t.TempDir(), "boot", nil)
	if _, ret := m.gpus[0].GetFanSpeed(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("fan speed: %v", ret)
	}
	if _, ret := m.UnitGetCount(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("units: %v", ret)
	}
}

func TestCDISpecNamesEveryDevice(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("making device nodes needs root")
	}
	dir := t.TempDir()
	m := newMachine(t, dir, "boot", nil)
	uuids := []string{m.topology.UUID(0), m.topology.UUID(1), m.gpus[0].migDevices()[0].uuid()}
	spec, _, err := m.CDISpec("ours/gpu", uuids)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, d := range spec.Devices {
		names[d.Name] = d.ContainerEdits.DeviceNodes[0].Path
	}
	mig := m.gpus[0].migDevices()[0].uuid()
	if spec.Kind != "ours/gpu" || names[m.topology.UUID(1)] != "/dev/nvidia1" || names[mig] != "/dev/nvidia0" {
		t.Errorf("spec is %+v", spec)
	}
	if _, err := os.Open(filepath.Join(dir, "dev", "nvidia1")); !os.IsNotExist(err) && !strings.Contains(err.Error(), "no such device") {
		t.Errorf("opening a node of a driver that is not there: %v", err)
	}
	if _, _, err := m.CDISpec("ours/gpu", uuids); err != nil {
		t.Errorf("a second time: %v", err)
	}
}
