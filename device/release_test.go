package device

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/device"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
	"github.com/nomad-gpu/nomad-gpu/device/sim"
)

// until waits for something that no fingerprint tells.
func eventually(t *testing.T, what string, wanted func() bool) {
	t.Helper()
	for limit := time.After(patience); !wanted(); {
		select {
		case <-limit:
			t.Fatalf("gave up waiting until %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// The reset that a fault asks for is done while Nomad runs: when no program is on
// the GPU any more, its daemon's included, and not before.
func TestReleaseResetsAnEmptyGPU(t *testing.T) {
	r := newRig(t)
	r.start("../e2e/topology/t4.hcl", "mode = \"slice\"")
	groups := r.until("all is healthy", allHealthy)
	uuid := uuidOf(t, groups, "slice/T4/0")
	daemon := r.service.reconciler.mps.Status(uuid).PID
	r.listen(uuid)
	r.happen(uuid, func(c *sim.Condition) {
		c.XIDs = append(c.XIDs, 48)
		c.ProbeFails = true
		c.Processes = []sim.Process{{PID: 4294967, MemoryMiB: 5}}
	})
	r.until("it is ill", func(g []*device.DeviceGroup) bool { _, n := find(g, "slice/T4/0"); return n == 0 })
	releases := registry.OpenReleases(r.dir + "/data")
	if err := releases.Add(uuid, registry.ReleaseReset); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is cordoned", func() bool {
		for _, s := range must(r.openState().GPUs()) {
			if s.UUID == uuid && strings.Contains(s.CordonReason, "released") {
				return true
			}
		}
		return false
	})
	if !releases.Has(uuid) || r.service.reconciler.mps.Status(uuid).PID != daemon {
		t.Error("it was released under a program")
	}
	r.happen(uuid, func(c *sim.Condition) { c.Processes = nil })
	eventually(t, "it is released", func() bool { return !releases.Has(uuid) })
	r.until("it is well", allHealthy)
	if registry.OpenCordons(r.dir + "/data").Has(uuid) {
		t.Error("it is cordoned")
	}
	if now := r.service.reconciler.mps.Status(uuid).PID; now == 0 || now == daemon {
		t.Errorf("its daemon was %d and is %d", daemon, now)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// fixedObserver sees the same processes always.
type fixedObserver struct {
	fleet.Observer
	processes []hardware.Process
	err       error
}

func (o fixedObserver) Processes(string, string) ([]hardware.Process, error) {
	return o.processes, o.err
}

// A program that works tells nothing of links, nor of a GPU that was not reset
// because programs from before the fault are on it still.
func TestProbeIsNotAskedWhatItCannotTell(t *testing.T) {
	fault := time.Now()
	starts := map[int]time.Time{1: fault.Add(-time.Hour), 2: fault.Add(time.Hour), 4: fault.Add(-time.Hour)}
	for name, tc := range map[string]struct {
		xid   uint64
		links int
		see   fixedObserver
		says  string
	}{
		"a reset GPU":               {48, 4, fixedObserver{}, ""},
		"a program from before":     {48, 4, fixedObserver{processes: []hardware.Process{{PID: 2}, {PID: 1}}}, "process 1 is on it since before xid-48"},
		"a program from after":      {48, 4, fixedObserver{processes: []hardware.Process{{PID: 2}}}, ""},
		"a program that has ended":  {48, 4, fixedObserver{processes: []hardware.Process{{PID: 3}}}, ""},
		"an MPS server from before": {48, 4, fixedObserver{processes: []hardware.Process{{PID: 4}}}, ""},
		"the driver is silent":      {48, 4, fixedObserver{err: errors.New("no answer")}, "its processes are not known"},
		"links are up":              {74, 4, fixedObserver{processes: []hardware.Process{{PID: 1}}}, ""},
		"a link is down":            {149, 3, fixedObserver{}, "1 of its 4 links are down"},
		"a link is down, as before": {48, 3, fixedObserver{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := testProbes(t, tc.see)
			p.server = func(pid int) bool { return pid == 4 }
			p.startOf = func(pid int) (time.Time, bool) { at, ok := starts[pid]; return at, ok }
			g := testGPU(testUUID(0), 0)
			for _, links := range []int{4, tc.links} {
				g.Links.Switches = links
				p.registry.Admit([]hardware.GPU{g})
			}
			p.health.XID(g.UUID, tc.xid, fault)
			err := p.cannotJudge(g.UUID, g.UUID)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %q", err, tc.says)
			}
		})
	}
}

// A GPU that fails again and again stays out until a person has looked.
func TestFlappingGPUStaysOut(t *testing.T) {
	p := testProbes(t, nil)
	now := epoch
	p.now = func() time.Time { return now }
	uuid := testUUID(0)
	recover := func() {
		p.health.XID(uuid, 48, now)
		p.health.Survey(uuid, nil, now)
		p.onOutcome(outcome{uuid: uuid})
		now = now.Add(10 * time.Minute)
	}
	recover()
	recover()
	now = now.Add(time.Hour)
	recover()
	recover()
	if p.cordons.Has(uuid) {
		t.Error("cordoned after two recoveries within an hour")
	}
	recover()
	if !p.cordons.Has(uuid) {
		t.Error("not cordoned after three")
	}
}
