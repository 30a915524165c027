// SPDX-License-Identifier: MPL-2.0

package prepare

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nomad-gpu/nomad-gpu/device/fleet"
	"github.com/nomad-gpu/nomad-gpu/device/hardware"
	"github.com/nomad-gpu/nomad-gpu/device/occupancy"
	"github.com/nomad-gpu/nomad-gpu/device/plan"
	"github.com/nomad-gpu/nomad-gpu/device/registry"
)

// fixedDaemons are daemons that do nothing.
type fixedDaemons struct {
	Daemons
	server int
}

func (d fixedDaemons) Server(pid int) bool { return pid == d.server }

// releaseBench is a preparer whose hardware and daemons do as a test says.
type releaseBench struct {
	*Preparer
	registry *registry.Registry
	hardware *releasable
}

// releasable is a GPU with programs, which can be let go of and reset, or not.
type releasable struct {
	fleet.Observer
	on     map[string][]hardware.Process // by the UUID that is asked
	silent bool
	// released and reset count; failure is that of a reset.
	released, reset int
	failure         error
}

func (h *releasable) Processes(_, uuid string) ([]hardware.Process, error) {
	if h.silent {
		return nil, errors.New("no answer")
	}
	return h.on[uuid], nil
}

func (h *releasable) Release(_ string, f func() error) error { h.released++; return f() }
func (h *releasable) Reset(string) error                     { h.reset++; return h.failure }

func newReleaseBench(t *testing.T) *releaseBench {
	h := &releasable{on: map[string][]hardware.Process{}}
	p := testPreparer(t, testConfig(t, sliced), &fleet.Platform{Observer: h, Resetter: h}, fixedDaemons{server: 7})
	return &releaseBench{p, testRegistry(), h}
}

// pass plans and releases, until nothing more comes of it, and returns the first unit.
func (b *releaseBench) pass(inputs plan.Inputs) *plan.Unit {
	var u *plan.Unit
	for range 3 {
		inputs.Cordons, _ = b.Cordons.All()
		units := plan.Units(b.Config, b.registry, testMachine(2), inputs)
		u = units[0]
		b.release(units)
		synctest.Wait()
	}
	return u
}

// A GPU is let go of once no task and no program but its daemon's is on it, and the
// daemon has ended; until then it takes no new work, and its neighbor is not concerned.
func TestReleaseWaitsForAnEmptyGPU(t *testing.T) {
	uuid := testUUID(0)
	slice := quiet()
	slice.Holders[uuid] = occupancy.Holder{Slices: map[int]bool{3: true}}
	all := quiet()
	all.Holders[uuid] = occupancy.Holder{All: true}
	for name, tc := range map[string]struct {
		inputs   plan.Inputs
		on       []hardware.Process
		silent   bool
		released bool // has no daemon any more
		done     bool
	}{
		"empty":             {quiet(), nil, false, true, true},
		"a task's slice":    {slice, nil, false, false, false},
		"a task":            {all, nil, false, false, false},
		"a program":         {quiet(), []hardware.Process{{PID: 9}}, false, false, false},
		"its daemon's":      {quiet(), []hardware.Process{{PID: 7}}, false, true, false},
		"that and another":  {quiet(), []hardware.Process{{PID: 7}, {PID: 9}}, false, false, false},
		"no one knows what": {quiet(), nil, true, false, false},
	} {
		for _, reset := range []string{"", registry.ReleaseReset} {
			t.Run(name+" "+reset, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newReleaseBench(t)
					b.hardware.on[uuid], b.hardware.silent = tc.on, tc.silent
					if err := b.Releases.Add(uuid, reset); err != nil {
						t.Fatal(err)
					}
					units := plan.Units(b.Config, b.registry, testMachine(2), tc.inputs)
					b.release(units)
					synctest.Wait()
					if u := units[0]; u.Cordon == "" || u.Released != tc.released {
						t.Errorf("cordoned %q, released %v", u.Cordon, u.Released)
					}
					if u := units[1]; u.Cordon != "" || u.Released {
						t.Errorf("its neighbor is cordoned %q, released %v", u.Cordon, u.Released)
					}
					b.pass(tc.inputs)
					if done := !b.Releases.Has(uuid); done != tc.done || (b.hardware.released > 0) != tc.done || (b.hardware.reset > 0) != (tc.done && reset != "") {
						t.Errorf("done %v, let go of %d times, reset %d times", done, b.hardware.released, b.hardware.reset)
					}
					if b.Cordons.Has(uuid) {
						t.Error("it stays cordoned")
					}
				})
			})
		}
	}
}

// A reset that fails is said by a cordon that stays, and is not tried again unasked.
func TestAResetThatFailsIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, uuid := newReleaseBench(t), testUUID(0)
		b.hardware.failure = errors.New("GPU is an NVLink neighbor of GPU-2")
		if err := b.Releases.Add(uuid, registry.ReleaseReset); err != nil {
			t.Fatal(err)
		}
		u := b.pass(quiet())
		if !strings.Contains(u.Cordon, "its release failed: GPU is an NVLink neighbor of GPU-2") || b.Releases.Has(uuid) || b.hardware.reset != 1 {
			t.Errorf("cordon %q after %d attempts", u.Cordon, b.hardware.reset)
		}
		time.Sleep(2 * retryInterval)
		if u = b.pass(quiet()); b.hardware.reset != 1 || u.Cordon == "" {
			t.Errorf("cordon %q after %d attempts", u.Cordon, b.hardware.reset)
		}
		// Asked for anew, it is done at once.
		b.hardware.failure = nil
		if err := errors.Join(b.Cordons.Remove(uuid), b.Releases.Add(uuid, registry.ReleaseReset)); err != nil {
			t.Fatal(err)
		}
		if u = b.pass(quiet()); b.hardware.reset != 2 || u.Cordon != "" {
			t.Errorf("cordon %q after %d attempts", u.Cordon, b.hardware.reset)
		}
	})
}

// settableModes are the compute modes of a GPU, with what they were set to.
type settableModes struct {
	now hardware.ComputeMode
	set []hardware.ComputeMode
}

func (m *settableModes) ComputeMode(string, string) (hardware.ComputeMode, error) { return m.now, nil }

func (m *settableModes) SetComputeMode(_, _ string, mode hardware.ComputeMode) error {
	m.now, m.set = mode, append(m.set, mode)
	return nil
}

// A GPU that is released is as it was found while it is reset, and exclusive after.
func TestReleasePutsTheComputeModeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		uuid := testUUID(0)
		h := &releasable{on: map[string][]hardware.Process{uuid: {{PID: 9}}}}
		modes := &settableModes{now: hardware.ComputeDefault}
		p := testPreparer(t, testConfig(t, sliced+"mps {\n exclusive = true\n}"), &fleet.Platform{Observer: h, Resetter: h, Moder: modes}, statusDaemons{})
		known := testRegistry()
		pass := func() {
			p.Prepare(plan.Units(p.Config, known, testMachine(1), quiet()), testMachine(1), quiet())
			synctest.Wait()
		}
		expect := func(what string, want ...hardware.ComputeMode) {
			t.Helper()
			if !slices.Equal(modes.set, want) {
				t.Errorf("%s: the mode was set to %v, want %v", what, modes.set, want)
			}
		}
		pass()
		expect("at first", hardware.ComputeExclusive)
		if err := p.Releases.Add(uuid, ""); err != nil {
			t.Fatal(err)
		}
		pass()
		expect("while a program is on it", hardware.ComputeExclusive)
		h.on[uuid] = nil
		pass()
		expect("while it is released", hardware.ComputeExclusive, hardware.ComputeDefault)
		pass() // hears that it is done
		pass()
		expect("after", hardware.ComputeExclusive, hardware.ComputeDefault, hardware.ComputeExclusive)
		if p.Releases.Has(uuid) || h.released != 1 {
			t.Errorf("it was let go of %d times", h.released)
		}
	})
}
