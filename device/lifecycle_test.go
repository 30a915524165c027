// SPDX-License-Identifier: MPL-2.0

package device

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/internal/statedir"
)

// dgx is a rig with eight GPUs, four of them sliced, that has become healthy.
func dgx(t *testing.T) *rig {
	r := newRig(t)
	r.start("../e2e/topology/dgx-h100.hcl", dgxConfig)
	r.until("all is healthy", allHealthy)
	return r
}

func (r *rig) happen(uuid string, change func(*sim.Condition)) {
	r.t.Helper()
	if err := sim.Update(r.dir+"/sim", uuid, change); err != nil {
		r.t.Fatal(err)
	}
}

// find returns the group of a name and how many of its instances are healthy.
func find(groups []*device.DeviceGroup, name string) (*device.DeviceGroup, int) {
	for _, g := range groups {
		if g.Type+"/"+g.Name != name {
			continue
		}
		healthy := 0
		for _, d := range g.Devices {
			if d.Healthy {
				healthy++
			}
		}
		return g, healthy
	}
	return nil, -1
}

func uuidOf(t *testing.T, groups []*device.DeviceGroup, name string) string {
	t.Helper()
	g, _ := find(groups, name)
	if g == nil {
		t.Fatalf("no group %s", name)
	}
	id, _, err := gpu.ParseSliceID(g.Devices[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	return id.UUID
}

func (r *rig) groups() []*device.DeviceGroup {
	return r.until("there are groups", func(g []*device.DeviceGroup) bool { return len(g) > 0 })
}

func TestFatalXIDAndRecovery(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/1")
	r.listen(uuid)
	began := time.Now()
	// No program works from the start, or a quick probe would prove the GPU before its next survey.
	r.happen(uuid, func(c *sim.Condition) { c.XIDs = append(c.XIDs, 48); c.RecoveryAction = 1; c.ProbeFails = true })
	groups := r.until("its slices are unhealthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/1"); return n == 0 })
	t.Logf("from XID to unhealthy: %s", time.Since(began).Round(time.Millisecond))
	for _, other := range []string{"slice/H100/0", "slice/H100/2"} {
		if _, n := find(groups, other); n != 79 {
			t.Errorf("%s has %d healthy slices", other, n)
		}
	}
	g, _ := find(groups, "slice/H100/1")
	if text := g.Devices[5].HealthDesc; !strings.Contains(text, "nvidia-smi --gpu-reset") || !strings.Contains(text, "since 20") {
		t.Errorf("health description is %q", text)
	}
	if plan.AttributeText(g.Attributes["healthy"]) != "0" {
		t.Errorf("attribute healthy is %s", plan.AttributeText(g.Attributes["healthy"]))
	}
	// The reset is done, but a program still fails on the GPU.
	r.happen(uuid, func(c *sim.Condition) { c.RecoveryAction = 0 })
	r.until("only the XID is left", func(g []*device.DeviceGroup) bool {
		group, _ := find(g, "slice/H100/1")
		return strings.HasPrefix(group.Devices[0].HealthDesc, "xid-48")
	})
	began = time.Now()
	r.happen(uuid, func(c *sim.Condition) { c.ProbeFails = false })
	r.until("it is healthy again", allHealthy)
	t.Logf("from cleared fault to healthy: %s", time.Since(began).Round(time.Millisecond))
}

func (r *rig) openState() *statedir.Dir {
	r.t.Helper()
	boot, err := statedir.BootID()
	if err != nil {
		r.t.Fatal(err)
	}
	state, err := statedir.Open(r.dir+"/run", boot)
	if err != nil {
		r.t.Fatal(err)
	}
	return state
}

func TestLostAndMissingAndHangingGPUs(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*sim.Condition)
		code   string
	}{
		"lost":    {func(c *sim.Condition) { c.Lost = true }, "gpu-lost"},
		"missing": {func(c *sim.Condition) { c.Missing = true }, "gpu-missing"},
		"hanging": {func(c *sim.Condition) { c.Hang = []string{"GetMemoryInfo"} }, "nvml-timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			r := dgx(t)
			uuid := uuidOf(t, r.groups(), "slice/H100/0")
			r.happen(uuid, tc.change)
			// A survey under way may find a GPU lost that the next finds missing.
			groups := r.until("its slices say "+tc.code, func(groups []*device.DeviceGroup) bool {
				if _, n := find(groups, "slice/H100/1"); n != 79 {
					t.Errorf("its neighbor has %d healthy slices", n)
				}
				g, n := find(groups, "slice/H100/0")
				return n == 0 && strings.HasPrefix(g.Devices[0].HealthDesc, tc.code+": ")
			})
			g, _ := find(groups, "slice/H100/0")
			if _, err := r.Reserve([]string{g.Devices[0].ID}); err == nil {
				t.Error("a slice of it was reserved")
			}
			r.happen(uuid, func(c *sim.Condition) { *c = sim.Condition{} })
			r.until("all is healthy again", allHealthy)
		})
	}
}

func TestRestartWithGPUsRenumberedAndOneMissing(t *testing.T) {
	r := dgx(t)
	before := map[string]string{}
	for _, g := range r.groups() {
		before[g.Devices[0].ID] = g.Name
	}
	uuid := uuidOf(t, r.groups(), "slice/H100/2")
	last := uuidOf(t, r.groups(), "slice/H100/3")
	r.Close()
	r.happen(uuid, func(c *sim.Condition) { c.Missing = true })
	c, err := sim.ReadControl(r.dir + "/sim")
	if err != nil {
		t.Fatal(err)
	}
	c.Order = []string{last}
	if err := sim.WriteControl(r.dir+"/sim", c); err != nil {
		t.Fatal(err)
	}
	r.start("../e2e/topology/dgx-h100.hcl", dgxConfig)
	groups := r.until("the rest is healthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/3"); return n == 79 })
	for _, g := range groups {
		if before[g.Devices[0].ID] != g.Name {
			t.Errorf("%s was in group %q and is in %q", g.Devices[0].ID, before[g.Devices[0].ID], g.Name)
		}
	}
	if g, n := find(groups, "slice/H100/2"); g == nil || n != 0 {
		t.Error("the missing GPU is offered")
	}
}

func TestForgettingAGPU(t *testing.T) {
	r := dgx(t)
	groups := r.groups()
	gone, here := uuidOf(t, groups, "slice/H100/1"), uuidOf(t, groups, "slice/H100/2")
	r.happen(gone, func(c *sim.Condition) { c.Missing = true })
	r.until("it is missing", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/1"); return n == 0 })
	for _, uuid := range []string{gone, here} {
		if err := registry.OpenForgotten(r.dir+"/data").Add(uuid, ""); err != nil {
			t.Fatal(err)
		}
	}
	groups = r.until("it is forgotten", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/1"); return n == -1 })
	if _, n := find(groups, "slice/H100/2"); n != 79 {
		t.Error("a GPU that is there was forgotten")
	}
	r.happen(gone, func(c *sim.Condition) { c.Missing = false })
	if g, _ := find(r.until("it is back", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/1"); return n == 79 }), "slice/H100/1"); g == nil {
		t.Error("it came back under another name")
	}
}

func TestMachineWithoutDriver(t *testing.T) {
	r := newRig(t)
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{NoNVML: true}); err != nil {
		t.Fatal(err)
	}
	r.start("../e2e/topology/dgx-h100.hcl", dgxConfig)
	r.until("there are no groups", func(g []*device.DeviceGroup) bool { return len(g) == 0 })
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{}); err != nil {
		t.Fatal(err)
	}
	r.until("the driver is there", allHealthy)
	// It goes away under a running plugin.
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{NoNVML: true}); err != nil {
		t.Fatal(err)
	}
	groups := r.until("nothing is healthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/0"); return n == 0 })
	if len(groups) == 0 {
		t.Error("the groups were withdrawn, so Nomad forgets what is held")
	}
	if err := sim.WriteControl(r.dir+"/sim", sim.Control{}); err != nil {
		t.Fatal(err)
	}
	r.until("all is healthy again", allHealthy)
}

// The next tenant must not find what the last one left in shared memory.
func TestSharedMemoryIsEmptiedAfterTheTask(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/0")
	state := r.openState()
	s, err := state.GPU(uuid)
	if err != nil {
		t.Fatal(err)
	}
	lease := gpu.Lease{ID: "a.task", Phase: gpu.PhaseRunning, Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: []int{3}}}}
	if err := state.WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	left := s.MPS.ShmDir + "/left"
	writeFile(t, left, "secret")
	lease.Phase, lease.EndedAt = gpu.PhaseEnded, time.Now()
	if err := state.WriteLease(lease); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(left); os.IsNotExist(err) {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the file is still there")
		}
	}
}

func TestStateFilesTellTheDriver(t *testing.T) {
	r := dgx(t)
	// A GPU is healthy before its CDI device is made where no driver of ours has run.
	var states []gpu.GPUState
	eventually(t, "all have CDI devices", func() bool {
		states = must(r.openState().GPUs())
		return !slices.ContainsFunc(states, func(s gpu.GPUState) bool { return s.Mode != gpu.ModeMIG && s.CDIDevice == "" })
	})
	if len(states) != 8+10 {
		t.Fatalf("%d states", len(states))
	}
	byMode := map[gpu.Mode]int{}
	for _, s := range states {
		byMode[s.Mode]++
		if s.Mode != gpu.ModeMIG && s.CDIDevice != "nomad-gpu/nvidia="+s.UUID {
			t.Errorf("CDI device of %s is %q", s.UUID, s.CDIDevice)
		}
		if s.Mode == gpu.ModeSlice && (s.MPS == nil || !s.MPS.Ready || s.MPS.MaxClients != 48 || s.Slices != 79 || s.SliceMemoryMiB != 1024 || s.Grade != gpu.GradeCooperative) {
			t.Errorf("state of a sliced GPU is %+v", s)
		}
	}
	if byMode[gpu.ModeSlice] != 4 || byMode[gpu.ModeMIG] != 2 || byMode[gpu.ModeWhole] != 12 {
		t.Errorf("modes are %v", byMode)
	}
	if _, err := os.Stat(r.dir + "/run/cdi/nomad-gpu-nvidia.json"); err != nil {
		t.Errorf("the CDI spec: %v", err)
	}
	if info, err := os.Stat(r.dir + "/sim/dev/nvidia3"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("the device node: %v, %v", info, err)
	}
}

func TestFullMPSServerTakesNoNewWork(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/0")
	r.happen(uuid, func(c *sim.Condition) {
		for pid := range uint32(48) {
			c.Processes = append(c.Processes, sim.Process{PID: 100000 + pid, MPS: true})
		}
	})
	g, _ := find(r.until("it is full", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/0"); return n == 0 }), "slice/H100/0")
	if text := g.Devices[0].HealthDesc; text != "cordoned: all 48 clients that its MPS server can have are there" {
		t.Errorf("health description is %q", text)
	}
	r.happen(uuid, func(c *sim.Condition) { c.Processes = c.Processes[1:] })
	r.until("there is room", allHealthy)
}

func TestNothingChangesNothingIsSent(t *testing.T) {
	r := dgx(t)
	stream, err := r.Fingerprint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-stream
	latest := r.service.reconciler.published.latest.Load()
	for passes := 0; passes < 10; {
		select {
		case f := <-stream:
			t.Fatalf("after %d passes without any change there is another fingerprint:\n%s", passes, describeGroups(f.Devices))
		case <-time.After(10 * time.Millisecond):
		}
		if next := r.service.reconciler.published.latest.Load(); next != latest {
			passes, latest = passes+1, next
		}
	}
}

func TestDisabledPluginSaysSo(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", `enabled = false`)
	if _, err := r.Fingerprint(t.Context()); err != device.ErrPluginDisabled {
		t.Errorf("got %v", err)
	}
}

// Where no XID tells and no survey sees it, the event itself is the fault, and
// stands until a program works on the GPU.
func TestEventsOtherThanXIDs(t *testing.T) {
	r := dgx(t)
	uuid := uuidOf(t, r.groups(), "slice/H100/1")
	r.listen(uuid)
	r.happen(uuid, func(c *sim.Condition) {
		c.Events, c.ProbeFails = append(c.Events, nvml.EventTypeGpuUnavailableError), true
	})
	groups := r.until("its slices are unhealthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/1"); return n == 0 })
	g, _ := find(groups, "slice/H100/1")
	if text := g.Devices[0].HealthDesc; !strings.HasPrefix(text, "event-gpu-unavailable: ") {
		t.Errorf("health description is %q", text)
	}
	r.start("../e2e/topology/dgx-h100.hcl", dgxConfig) // it outlives the plugin
	r.until("it is still unhealthy", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/H100/1"); return n == 0 })
	r.happen(uuid, func(c *sim.Condition) { c.ProbeFails = false })
	r.until("it is healthy again", allHealthy)
}
