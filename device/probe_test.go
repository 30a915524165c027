// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/health"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

// testProbes know no device yet.
func testProbes(t *testing.T, o fleet.Observer) *probes {
	t.Helper()
	return &probes{log: hclog.NewNullLogger(), report: func(string, error) {}, health: health.New(testConfig(t, "").Health), registry: testRegistry(),
		cordons: registry.OpenCordons(t.TempDir()), observer: o, outcomes: make(chan outcome), running: map[string]bool{}, ended: map[string]time.Time{}}
}

// failingProber counts, and finds that nothing works.
type failingProber struct{ count int }

func (p *failingProber) Probe(hardware.ProbeTarget) error {
	p.count++
	return errors.New("a CUDA program fails")
}

// A GPU that stays broken must not be probed without a pause: each probe is a
// CUDA program, and its outcome makes a pass of its own, which probes.
func TestProbesPauseBetweenFailures(t *testing.T) {
	now, prober := time.Now(), &failingProber{}
	c := testConfig(t, "")
	p := testProbes(t, fixedObserver{})
	p.prober, p.pause, p.now = prober, c.Health.Interval/2, func() time.Time { return now }
	p.health.XID(testUUID(0), 48, now)
	p.health.Survey(testUUID(0), nil, now)
	for step, want := range []int{1, 1, 2, 2, 3} {
		p.probeAll(t.Context(), nil)
		if p.running[testUUID(0)] {
			p.onOutcome(<-p.outcomes)
		}
		if prober.count != want {
			t.Errorf("after step %d there were %d probes, want %d", step, prober.count, want)
		}
		now = now.Add(c.Health.Interval / 4)
	}
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
		"a program from before":     {48, 4, fixedObserver{processes: []hardware.Process{{PID: 2}, {PID: 1}}}, ") is on it since before xid-48"},
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
