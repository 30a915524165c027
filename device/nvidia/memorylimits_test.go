// SPDX-License-Identifier: MPL-2.0

package nvidia_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-gpu/nomad-gpu/device/nvidia"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// limitsRig is a machine of a driver branch, with cgroup v2 or not.
func limitsRig(t *testing.T, driver string, unified bool, noSymbols ...string) (*nvidia.Backend, string, string) {
	t.Helper()
	topology, err := sim.ParseTopology("test.hcl", []byte(`machine "test" { driver = "`+driver+`" }
gpu { model = "H100" }`))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := sim.WriteControl(dir, sim.Control{Unified: unified, NoSymbols: noSymbols}); err != nil {
		t.Fatal(err)
	}
	machine, err := sim.New(topology, sim.Options{Dir: dir, BootID: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	b := nvidia.New(machine, forever)
	t.Cleanup(b.Close)
	return b, dir, topology.UUID(0)
}

func TestDriversThatHoldControlGroupsToTheirMemory(t *testing.T) {
	for _, tc := range []struct {
		driver    string
		unified   bool
		noSymbols []string
		want      bool
	}{
		{"615.71.09", true, nil, true},
		{"615.71.09", false, nil, false},
		{"610.43.02", true, nil, false},
		{"615.71.09", true, []string{"nvmlDeviceGetMemoryLimits_v1"}, false},
		{"615.71.09", true, []string{"nvmlDeviceSetMemoryLimits_v1"}, false},
	} {
		b, _, uuid := limitsRig(t, tc.driver, tc.unified, tc.noSymbols...)
		machine, err := b.Survey()
		if err != nil {
			t.Fatal(err)
		}
		if got := machine.GPUs[0].MemoryLimits; got != tc.want {
			t.Errorf("%+v: %t", tc, got)
		}
		err = b.SetMemoryLimits(uuid, t.TempDir(), 1024, 2048)
		if (err == nil) != tc.want {
			t.Errorf("%+v: set: %v", tc, err)
		}
	}
}

func TestMemoryLimits(t *testing.T) {
	b, dir, uuid := limitsRig(t, "615.71.09", true)
	group := t.TempDir()
	for _, guarantee := range []int64{1024, 0} {
		if err := b.SetMemoryLimits(uuid, group, guarantee, 2048); err != nil {
			t.Fatal(err)
		}
		set, err := sim.ReadMemoryLimits(dir)
		if want := (sim.MemoryLimits{Soft: uint64(guarantee) << 20, Hard: 2048 << 20}); err != nil || set[uuid][group] != want {
			t.Errorf("the limits are %+v, %v", set, err)
		}
	}
	for _, tc := range []struct {
		name             string
		group            string
		guarantee, limit int64
		says             string
	}{
		{"no such group", filepath.Join(group, "gone"), 1, 2, "refuses"},
		{"more guaranteed than allowed", group, 2, 1, "invalid argument"},
		{"more than there is", group, 1, 1 << 20, "invalid argument"},
	} {
		if err := b.SetMemoryLimits(uuid, tc.group, tc.guarantee, tc.limit); err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), tc.group) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	for _, call := range []string{"SetMemoryLimits_v1", "GetMemoryLimits_v1"} {
		if err := sim.Update(dir, uuid, func(c *sim.Condition) { c.Errors = map[string]int{call: int(nvml.ERROR_NO_PERMISSION)} }); err != nil {
			t.Fatal(err)
		}
		if err := b.SetMemoryLimits(uuid, group, 1, 2); err == nil || !strings.Contains(err.Error(), "no permission") {
			t.Errorf("%s fails: %v", call, err)
		}
	}
	if err := b.SetMemoryLimits("GPU-x", group, 1, 2); err == nil {
		t.Error("a GPU that is not there has limits")
	}
}
