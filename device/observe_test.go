package device

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

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

// A GPU is forgotten when it is known not to be there, not when it is not seen.
func TestForgetWaitsForASurveyOfEveryGPU(t *testing.T) {
	ours, others := testMachine(2), testMachine(1)
	for name, tc := range map[string]struct {
		gpus              []hardware.GPU
		driver            hardware.Driver
		forgotten, marked bool
	}{
		"NVML is absent":      {nil, hardware.Driver{Absent: &hardware.Problem{Code: "nvml-absent"}}, false, true},
		"a GPU does not tell": {others.GPUs, hardware.Driver{Unknown: []hardware.Problem{{Code: "nvml-timeout"}}}, false, true},
		"it is there":         {ours.GPUs, hardware.Driver{}, false, false},
		"it is not there":     {others.GPUs, hardware.Driver{}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			uuid := testUUID(1)
			r := testReconciler(testConfig(t, ""))
			r.forgotten = registry.OpenForgotten(t.TempDir())
			r.registry.Admit(ours.GPUs)
			if err := r.forgotten.Add(uuid, ""); err != nil {
				t.Fatal(err)
			}
			r.forget(hardware.Machine{GPUs: tc.gpus, Drivers: map[string]hardware.Driver{"nvidia": tc.driver}})
			if forgotten := !slices.Contains(r.registry.GPUs(), uuid); forgotten != tc.forgotten || r.forgotten.Has(uuid) != tc.marked {
				t.Errorf("forgotten %v, still marked %v", forgotten, r.forgotten.Has(uuid))
			}
		})
	}
}
