package device

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
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
