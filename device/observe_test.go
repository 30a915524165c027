package device

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-gpu/nomad-gpu/device/hardware"
)

// failingProber counts, and finds that nothing works.
type failingProber struct{ count int }

func (p *failingProber) Probe(_, _ string) error {
	p.count++
	return errors.New("a CUDA program fails")
}

// A GPU that stays broken must not be probed without a pause: each probe is a
// CUDA program, and its outcome makes a turn of its own, which probes.
func TestProbesPauseBetweenFailures(t *testing.T) {
	now, prober := time.Now(), &failingProber{}
	c := testConfig(t, "")
	e := &engine{log: hclog.NewNullLogger(), config: c, ledger: testLedger(), tracker: newTracker(c.health), platform: &platform{prober: prober},
		outcomes: make(chan outcome), probing: map[string]bool{}, probed: map[string]time.Time{}, complained: map[string]string{},
		now: func() time.Time { return now }}
	e.tracker.xid(testUUID(0), 48, now)
	e.tracker.survey(testUUID(0), nil, now)
	for step, want := range []int{1, 1, 2, 2, 3} {
		e.probe(t.Context())
		if e.probing[testUUID(0)] {
			e.settle(<-e.outcomes)
		}
		if prober.count != want {
			t.Errorf("after step %d there were %d probes, want %d", step, prober.count, want)
		}
		now = now.Add(c.health.interval / 4)
	}
}

// A GPU is forgotten when it is known not to be there, not when it is not seen.
func TestForgetWaitsForASurveyOfEveryGPU(t *testing.T) {
	ours, others := testMachine(2), testMachine(1)
	for name, tc := range map[string]struct {
		machine           hardware.Machine
		err               error
		forgotten, marked bool
	}{
		"NVML is absent":      {hardware.Machine{}, errors.New("no driver"), false, true},
		"a GPU does not tell": {hardware.Machine{GPUs: others.GPUs, Unknown: []hardware.Problem{{Code: "nvml-timeout"}}}, nil, false, true},
		"it is there":         {ours, nil, false, false},
		"it is not there":     {others, nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			uuid := testUUID(1)
			e := &engine{log: hclog.NewNullLogger(), ledger: testLedger(), forgotten: OpenForgotten(t.TempDir()), complained: map[string]string{}}
			e.ledger.admit(ours.GPUs)
			if err := e.forgotten.Add(uuid, ""); err != nil {
				t.Fatal(err)
			}
			e.forget(tc.machine, tc.err)
			if forgotten := !slices.Contains(e.ledger.gpus(), uuid); forgotten != tc.forgotten || e.forgotten.Has(uuid) != tc.marked {
				t.Errorf("forgotten %v, still marked %v", forgotten, e.forgotten.Has(uuid))
			}
		})
	}
}
