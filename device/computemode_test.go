// SPDX-License-Identifier: MPL-2.0

package device

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
)

const slicedT4 = `gpu {
	index = 0
	mode  = "slice"
}`

// exclusiveRig is a machine whose first GPU has slices under MPS, exclusive, and its
// second none. The operator has prohibited the second.
func exclusiveRig(t *testing.T) (r *rig, sliced, whole string) {
	r = newRig(t)
	r.start("../e2e/topology/t4.hcl", slicedT4)
	groups := r.until("all is healthy", allHealthy)
	sliced = uuidOf(t, groups, "slice/T4/0")
	whole = groups[slices.IndexFunc(groups, func(g *device.DeviceGroup) bool { return g.Type == "gpu" })].Devices[0].ID
	if mode := r.mode(sliced); mode != hardware.ComputeDefault {
		t.Fatalf("without exclusive the mode is %s", mode)
	}
	r.setMode(whole, hardware.ComputeProhibited)
	r.mps = "exclusive = true"
	r.start("../e2e/topology/t4.hcl", slicedT4)
	r.until("all is healthy", allHealthy)
	return r, sliced, whole
}

func (r *rig) mode(uuid string) hardware.ComputeMode {
	r.t.Helper()
	mode, err := r.service.reconciler.platform.Moder.ComputeMode(uuid, uuid)
	if err != nil {
		r.t.Fatal(err)
	}
	return mode
}

func (r *rig) setMode(uuid string, mode hardware.ComputeMode) {
	r.t.Helper()
	if err := r.service.reconciler.platform.Moder.SetComputeMode(uuid, uuid, mode); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) untilMode(uuid string, wanted hardware.ComputeMode) {
	r.t.Helper()
	eventually(r.t, "the mode is "+string(wanted), func() bool {
		mode, err := r.service.reconciler.platform.Moder.ComputeMode(uuid, uuid)
		return err == nil && mode == wanted
	})
}

// untilClosed waits for what the driver is told.
func (r *rig) untilClosed(uuid string, wanted bool) {
	r.t.Helper()
	eventually(r.t, "the driver is told", func() bool {
		s, err := r.openState().GPU(uuid)
		return err == nil && s.Exclusive == wanted
	})
}

func (r *rig) reserve(uuid string, numbers ...int) {
	r.t.Helper()
	if _, err := r.Reserve(sliceIDs(uuid, numbers...)); err != nil {
		r.t.Fatal(err)
	}
}

func upTo(n int) []int {
	var all []int
	for i := range n {
		all = append(all, i)
	}
	return all
}

// A task with all slices runs without MPS: it must be let in by the time at which
// Nomad starts it, and the next task's programs must not get by MPS.
func TestExclusiveModeIsRightWhenReserveReturns(t *testing.T) {
	r, uuid, other := exclusiveRig(t)
	g, _ := find(r.groups(), "slice/T4/0")
	all := upTo(len(g.Devices))
	for _, step := range []struct {
		slices []int
		want   hardware.ComputeMode
	}{
		{nil, hardware.ComputeExclusive},
		{[]int{1, 2}, hardware.ComputeExclusive},
		{all, hardware.ComputeDefault},
		{[]int{3}, hardware.ComputeExclusive},
		{all, hardware.ComputeDefault},
	} {
		if step.slices != nil {
			r.reserve(uuid, step.slices...)
		}
		if mode := r.mode(uuid); mode != step.want {
			t.Errorf("after a reservation of %v the mode is %s", step.slices, mode)
		}
		r.untilClosed(uuid, step.want == hardware.ComputeExclusive)
		if mode := r.mode(uuid); mode != step.want {
			t.Errorf("a look later it is %s", mode)
		}
	}
	// Its task may start again in its place, whatever happened to the plugin.
	r.start("../e2e/topology/t4.hcl", slicedT4)
	r.until("all is healthy", allHealthy)
	if mode := r.mode(uuid); mode != hardware.ComputeDefault {
		t.Errorf("after a restart of the plugin the mode is %s", mode)
	}
	if mode := r.mode(other); mode != hardware.ComputeProhibited {
		t.Errorf("the mode of a GPU without MPS is %s", mode)
	}
}

// Two device blocks of one task can add up to all slices, which no reservation says.
func TestExclusiveModeOpensToATaskThatHoldsAll(t *testing.T) {
	r, uuid, _ := exclusiveRig(t)
	g, _ := find(r.groups(), "slice/T4/0")
	all := upTo(len(g.Devices))
	r.reserve(uuid, all[:5]...)
	r.reserve(uuid, all[5:]...)
	lease := func(id string, phase gpu.Phase, began time.Time, numbers []int) {
		l := gpu.Lease{ID: id, Phase: phase, StartedAt: began, Holdings: []gpu.Holding{{UUID: uuid, Mode: gpu.ModeSlice, Slices: numbers}}}
		if err := r.openState().WriteLease(l); err != nil {
			t.Fatal(err)
		}
	}
	lease("both", gpu.PhaseStarting, time.Now(), all)
	r.untilMode(uuid, hardware.ComputeDefault)
	r.untilClosed(uuid, false)
	// What a look finds that began before the latest reservation opens nothing: the
	// task may have ended meanwhile.
	r.reserve(uuid, 1)
	r.untilClosed(uuid, true)
	if mode := r.mode(uuid); mode != hardware.ComputeExclusive {
		t.Errorf("after a reservation of a part the mode is %s", mode)
	}
}

func TestExclusiveModeIsKeptAndPutBack(t *testing.T) {
	r, uuid, _ := exclusiveRig(t)
	r.setMode(uuid, hardware.ComputeDefault)
	r.untilMode(uuid, hardware.ComputeExclusive)

	// A plugin that is started anew with another configuration, also after a crash.
	r.mps = ""
	r.start("../e2e/topology/t4.hcl", slicedT4)
	r.untilMode(uuid, hardware.ComputeDefault)
	letGo := func() bool {
		text, err := os.ReadFile(filepath.Join(r.dir, "run", "compute-modes.json"))
		return err == nil && !strings.Contains(string(text), uuid)
	}
	eventually(t, "the plugin has let go of it", letGo)
	r.setMode(uuid, hardware.ComputeProhibited)
	r.mps = "exclusive = true"
	r.start("../e2e/topology/t4.hcl", slicedT4)
	r.untilMode(uuid, hardware.ComputeExclusive)
	r.mps = ""
	r.start("../e2e/topology/t4.hcl", "")
	r.untilMode(uuid, hardware.ComputeProhibited)
	eventually(t, "the plugin has let go of it again", letGo)
	// What is not the plugin's stays what the operator made of it.
	r.setMode(uuid, hardware.ComputeExclusive)
	r.start("../e2e/topology/t4.hcl", "")
	r.until("all is healthy", allHealthy)
	if mode := r.mode(uuid); mode != hardware.ComputeExclusive {
		t.Errorf("the mode of a GPU that the plugin let go of is %s", mode)
	}
}

// Without the mode nothing is offered: a program could leave its limits.
func TestExclusiveModeThatCannotBeSetIsAFault(t *testing.T) {
	r, uuid, _ := exclusiveRig(t)
	g, _ := find(r.groups(), "slice/T4/0")
	all := upTo(len(g.Devices))
	r.happen(uuid, func(c *sim.Condition) { c.Errors = map[string]int{"SetComputeMode": int(nvml.ERROR_NO_PERMISSION)} })
	_, err := r.Reserve(sliceIDs(uuid, all...))
	if err == nil || !strings.Contains(err.Error(), "to DEFAULT: no permission") {
		t.Errorf("a task that would not be let in was given the GPU: %v", err)
	}
	r.until("its slices take no work", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/T4/0"); return n == 0 })
	r.happen(uuid, func(c *sim.Condition) { c.Errors = nil })
	r.until("it is healthy again", allHealthy)

	// The host's memory is its GPU's: no compute modes.
	r = nextRig(t)
	r.mps = "exclusive = true"
	r.start("../e2e/topology/gb10.hcl", `mode = "slice"`)
	groups := r.until("it says why", func(g []*device.DeviceGroup) bool {
		return len(g) > 0 && strings.Contains(g[0].Devices[0].HealthDesc, "compute-mode-not-set: ")
	})
	for _, part := range []string{"not supported", "take exclusive out of the plugin's mps block"} {
		if text := groups[0].Devices[0].HealthDesc; !strings.Contains(text, part) {
			t.Errorf("the fault is %q", text)
		}
	}
}

// MIG instances have compute modes of their own, and the GPU then has none.
func TestExclusiveModeOfMIGInstances(t *testing.T) {
	r := newRig(t)
	r.mps = "exclusive = true"
	r.start("../e2e/topology/dgx-a100.hcl", `gpu {
		index    = 0
		mode     = "mig"
		profiles = ["3g.40gb", "3g.40gb"]
		mig {
			mode = "slice"
		}
	}`)
	groups := r.until("all is healthy", func(g []*device.DeviceGroup) bool {
		_, n := find(g, "mig-slice/3g.40gb/1")
		return n > 0 && allHealthy(g)
	})
	instances := 0
	for _, g := range groups {
		if !strings.HasPrefix(g.Type, "mig") {
			continue
		}
		instances++
		id, _, err := gpu.ParseSliceID(g.Devices[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		mode, err := r.service.reconciler.platform.Moder.ComputeMode(r.service.reconciler.registry.Records[id.UUID].Parent, id.UUID)
		if err != nil || mode != hardware.ComputeExclusive {
			t.Errorf("the mode of %s is %s, %v", id.UUID, mode, err)
		}
	}
	if instances != 2 {
		t.Errorf("there are %d instances", instances)
	}
}
